// Highway compiles the file once per instruction set; the best one is taken at run time.
#include <stormo/codec/kernels.h>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/codec/whole_numbers.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <stormo/base/instruction_sets.h>

#include <algorithm>
#include <cfloat>
#include <cstdint>
#include <cstring>
#include <limits>

// A namespace for each file: the linker sees these functions.
HWY_BEFORE_NAMESPACE();
namespace stormo::codec::whole_numbers::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kBlock = 256;
constexpr std::size_t kLanes = 16;  // numbers at the same bits of the words of a block
using D = hn::CappedTag<float, kLanes>;
using Words = hn::RebindToUnsigned<D>;
using Integers = hn::RebindToSigned<D>;

template <int kBits>
constexpr int kMost = (1 << (kBits - 1)) - 1;
template <int kBits>
constexpr std::size_t kWords = kBlock * kBits / 32;  // of a block, behind its scale
template <int kBits>
constexpr std::size_t kBlockBytes = sizeof(float) * (1 + kWords<kBits>);

/// Of the numbers in a word the first one; the others follow at distances of kLanes.
template <int kBits>
constexpr std::size_t first_of(std::size_t word) {
  return word / kLanes * kLanes * (32 / kBits) + word % kLanes;
}

/// Of a block: the largest value over `most`; NaN if one is not finite, 0 if all are too small for
/// whole numbers of them.
float scale_of(const float* values, int most) {
  const D d;
  auto largest = hn::Zero(d), not_finite = hn::Zero(d);
  for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values + i);
    largest = hn::Max(largest, hn::Abs(v));
    not_finite = hn::Add(not_finite, hn::Sub(v, v));  // stays 0, or becomes NaN
  }
  if (hn::GetLane(hn::SumOfLanes(d, not_finite)) != 0) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = hn::GetLane(hn::MaxOfLanes(d, largest)) / static_cast<float>(most);
  return scale < FLT_MIN ? 0 : scale;
}

template <int kBits>
void encode_block(float* values, std::byte* code) {
  const float scale = scale_of(values, kMost<kBits>);
  auto* const words = reinterpret_cast<std::uint32_t*>(code + sizeof(float));
  std::memcpy(code, &scale, sizeof(float));
  if (!(scale > 0)) {
    std::memset(words, 0, kWords<kBits> * sizeof(float));
    if (scale != 0) std::memset(values, 0, kBlock * sizeof(float));
    return;
  }
  const D d;
  const Words w;
  const auto by = hn::Set(d, scale), inverse = hn::Set(d, 1 / scale);
  const auto bits = hn::Set(w, (1u << kBits) - 1);
  for (std::size_t word = 0; word < kWords<kBits>; word += hn::Lanes(d)) {
    float* at = values + first_of<kBits>(word);
    auto packed = hn::Zero(w);
    for (int bit = 0; bit < 32; bit += kBits, at += kLanes) {
      const auto v = hn::LoadU(d, at);
      const auto number = hn::NearestInt(hn::Mul(v, inverse));
      hn::StoreU(hn::Sub(v, hn::Mul(hn::ConvertTo(d, number), by)), d, at);
      packed = hn::Or(packed, hn::ShiftLeftSame(hn::And(hn::BitCast(w, number), bits), bit));
    }
    hn::StoreU(packed, w, words + word);
  }
}

template <int kBits>
void decode_add_block(float* values, const std::byte* code) {
  float scale = 0;
  std::memcpy(&scale, code, sizeof(float));
  const auto* const words = reinterpret_cast<const std::uint32_t*>(code + sizeof(float));
  const D d;
  const Words w;
  const auto by = hn::Set(d, scale);
  for (std::size_t word = 0; word < kWords<kBits>; word += hn::Lanes(d)) {
    float* at = values + first_of<kBits>(word);
    const auto packed = hn::LoadU(w, words + word);
    for (int bit = 0; bit < 32; bit += kBits, at += kLanes) {
      const auto top = hn::BitCast(Integers(), hn::ShiftLeftSame(packed, 32 - kBits - bit));
      const auto number = hn::ConvertTo(d, hn::ShiftRight<32 - kBits>(top));
      hn::StoreU(hn::Add(hn::LoadU(d, at), hn::Mul(number, by)), d, at);
    }
  }
}

/// Calls visit(block, its code) for each; the last one may be a copy that zeros fill.
template <int kBits, class Code, class Visit>
void for_each_block(std::span<float> values, Code* code, const Visit& visit) {
  for (; values.size() >= kBlock; values = values.subspan(kBlock), code += kBlockBytes<kBits>) {
    visit(values.data(), code);
  }
  if (values.empty()) return;
  float block[kBlock] = {};
  std::ranges::copy(values, block);
  visit(block, code);
  std::copy_n(block, values.size(), values.data());
}

void encode8(std::span<float> values, std::byte* code) {
  for_each_block<8>(values, code, encode_block<8>);
}

void decode8(std::span<float> values, const std::byte* code) {
  for_each_block<8>(values, code, decode_add_block<8>);
}

}  // namespace stormo::codec::whole_numbers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::codec::whole_numbers {

void encode_int8(std::span<float> values, std::byte* code) {
  STORMO_BEST_VERSION(encode8)(values, code);
}
void decode_add_int8(const std::byte* code, std::span<float> values) {
  STORMO_BEST_VERSION(decode8)(values, code);
}

}  // namespace stormo::codec::whole_numbers
#endif
