#pragma once

#include <cstdint>
#include <string>

#include <stormo/codec/codec.h>

namespace stormo::train {

/// Whether gradients are reduced during backward.
struct Overlap {
  enum class Kind : std::uint8_t {
    kInline,    ///< at the end of backward
    kBuckets,   ///< in buckets of `bucket_bytes`, during backward
    kMeasured,  ///< the one with the shortest steps, measured in the first steps
  } kind = Kind::kMeasured;
  std::int64_t bucket_bytes = 0;

  static Overlap measured() { return {}; }
  static Overlap at_the_end() { return {Kind::kInline, 0}; }
  static Overlap buckets(std::int64_t bytes) { return {Kind::kBuckets, bytes}; }
  bool operator==(const Overlap&) const = default;
};

/// How gradients are averaged; equal on all ranks.
struct ReductionOptions {
  Overlap overlap = Overlap::measured();
  std::string algorithm{};  ///< a builder of all_reduce; empty: by size, ranks and hosts
  /// The form in which gradients travel. Sparse ones keep their type.
  Codec codec = Codec::kNone;
};

}  // namespace stormo::train

namespace stormo {
using train::Overlap;
using train::ReductionOptions;
}  // namespace stormo
