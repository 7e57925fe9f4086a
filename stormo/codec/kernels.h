#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

// The arithmetic of codecs, for their rows: CodecRow says what each function does.
namespace stormo::codec {

namespace whole_numbers {

/// 256 neighbours have one scale, a float32, and each is a number of so many bits
/// times the scale. The largest of a block has the largest number. The words of a block have 16
/// neighbours at the same bits, so that vectors of any length pack them. A block with a value that
/// is not finite becomes one of NaN, and nothing of it is kept; of one whose scale would be below
/// the smallest normal float32 zeros are sent, and all is kept.
template <int kBits>
constexpr std::int64_t bytes(std::int64_t numbers) {
  constexpr std::int64_t kBlock = 256;
  return (numbers + kBlock - 1) / kBlock * (4 + kBlock * kBits / 8);
}

/// Numbers of 8 bits: the nearest of -127 to 127.
void encode_int8(std::span<float> values, std::byte* code);
void decode_add_int8(const std::byte* code, std::span<float> values);

}  // namespace whole_numbers

}  // namespace stormo::codec
