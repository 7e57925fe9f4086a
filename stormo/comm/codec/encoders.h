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

/// That of a codec of blocks; null for codecs that are types.
const Encoder* find_encoder(plan::Codec codec);

/// Blocks of plan::Codec::kInt8: a float32 scale, then a number of 8 bits for each value, which is
/// the nearest of -127 to 127 times the scale. The largest value of a block has 127 or -127. A
/// block with a value that is not finite becomes one of NaN, and nothing of it is kept; of one
/// whose values are all below 1e-36 nothing is sent, and all is kept. The bits are the same on all
/// processors.
Encoder int8_encoder();

}  // namespace stormo::comm
