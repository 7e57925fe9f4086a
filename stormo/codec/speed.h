#pragma once

#include <stormo/codec/codec.h>

namespace stormo {

/// How long one thread takes for each number of a long list, in seconds.
struct CodecSpeed {
  double encode = 0;
  double decode = 0;
  bool operator==(const CodecSpeed&) const = default;
};

/// Encodes and decodes some numbers here, for milliseconds. The three products of a codec with
/// factors count as encoding. Rounding to another type takes as long as a copy.
CodecSpeed measure_speed(Codec codec);

/// What a rank computes for a sum of so many numbers of all of `ranks`: see comm::SumOfCodes.
double seconds_of_sum(Codec codec, const CodecSpeed& speed, double numbers, int ranks);

}  // namespace stormo
