#pragma once

#include <span>

#include <stormo/codec/codec.h>

namespace stormo {

/// How much a codec loses, by its place among the others.
struct CodecLoss {
  Codec::Kind codec = Codec::kNone;
  /// Whether a program may take it by itself (strategy.compression = "auto").
  bool is_automatic = true;
};

/// All codecs. The one that loses least comes first, by the losses in docs/compression.md.
std::span<const CodecLoss> least_lossy_first();

}  // namespace stormo
