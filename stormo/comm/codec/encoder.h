#pragma once

#include <cstddef>
#include <span>

#include <stormo/plan/codec.h>

namespace stormo::comm {

/// The arithmetic of a codec of blocks. Values come in whole blocks: a multiple of row.block. Any
/// thread.
struct Encoder {
  plan::CodecRow row;
  /// Writes the code of `values`, and leaves in them what it lost: the value less the decoded one.
  void (*encode)(std::span<float> values, std::byte* code) = nullptr;
  /// Adds the decoded values to `values`.
  void (*decode_add)(const std::byte* code, std::span<float> values) = nullptr;
};

}  // namespace stormo::comm
