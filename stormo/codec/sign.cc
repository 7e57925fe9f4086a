// Highway compiles the file once per instruction set; the best one is taken at run time.
#include <stormo/codec/kernels.h>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/codec/sign.cc"
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
namespace stormo::codec::sign::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kBlock = 512;
constexpr std::size_t kLanes = 16;  // words of a block, of 32 signs each
constexpr std::size_t kBlockBytes = sizeof(float) * (1 + kLanes);
using D = hn::CappedTag<float, kLanes>;
using Words = hn::RebindToUnsigned<D>;

/// The mean of the magnitudes of the first `count` values, of which the others are 0; NaN if one is
/// not finite, 0 if it is too small. Added up in one order, whatever the length of vectors.
float magnitude_of(const float* values, std::size_t count) {
  const D d;
  const auto share = hn::Set(d, 1.0f / kBlock);  // so that no sum overflows
  float sums[kLanes];
  for (std::size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    auto sum = hn::Zero(d);
    for (std::size_t i = lane; i < kBlock; i += kLanes) {
      sum = hn::Add(sum, hn::Mul(hn::Abs(hn::LoadU(d, values + i)), share));
    }
    hn::StoreU(sum, d, sums + lane);
  }
  for (std::size_t half = kLanes / 2; half > 0; half /= 2) {
    for (std::size_t lane = 0; lane < half; ++lane) sums[lane] += sums[lane + half];
  }
  const float mean = sums[0] * (static_cast<float>(kBlock) / static_cast<float>(count));
  if (!(mean <= FLT_MAX)) return std::numeric_limits<float>::quiet_NaN();
  return mean < FLT_MIN ? 0 : mean;
}

void encode_block(float* values, std::byte* code, std::size_t count) {
  const float magnitude = magnitude_of(values, count);
  auto* const words = reinterpret_cast<std::uint32_t*>(code + sizeof(float));
  std::memcpy(code, &magnitude, sizeof(float));
  if (!(magnitude > 0)) {
    std::memset(words, 0, kLanes * sizeof(float));
    if (magnitude != 0) std::memset(values, 0, kBlock * sizeof(float));
    return;
  }
  const D d;
  const Words w;
  const auto positive = hn::BitCast(w, hn::Set(d, magnitude));
  const auto sign = hn::Set(w, 0x80000000u);
  for (std::size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    auto packed = hn::Zero(w);
    for (std::size_t i = lane, bit = 0; bit < 32; ++bit, i += kLanes) {
      const auto v = hn::LoadU(d, values + i);
      const auto own = hn::And(hn::BitCast(w, v), sign);
      hn::StoreU(hn::Sub(v, hn::BitCast(d, hn::Or(positive, own))), d, values + i);
      packed = hn::Or(hn::ShiftRight<1>(packed), own);  // the first one ends at bit 0
    }
    hn::StoreU(packed, w, words + lane);
  }
}

void decode_block(const std::byte* code, float* values) {
  float magnitude = 0;
  std::memcpy(&magnitude, code, sizeof(float));
  const auto* const words = reinterpret_cast<const std::uint32_t*>(code + sizeof(float));
  const D d;
  const Words w;
  const auto positive = hn::BitCast(w, hn::Set(d, magnitude));
  const auto sign = hn::Set(w, 0x80000000u);
  for (std::size_t lane = 0; lane < kLanes; lane += hn::Lanes(d)) {
    const auto packed = hn::LoadU(w, words + lane);
    for (std::size_t i = lane, bit = 0; bit < 32; ++bit, i += kLanes) {
      const auto own = hn::And(hn::ShiftLeftSame(packed, static_cast<int>(31 - bit)), sign);
      const auto value = hn::BitCast(d, hn::Or(positive, own));
      hn::StoreU(hn::Add(hn::LoadU(d, values + i), value), d, values + i);
    }
  }
}

/// Calls visit(block, its code, number of its values) for each; the last one may be a copy that
/// zeros fill.
template <class Code, class Visit>
void for_each_block(std::span<float> values, Code* code, const Visit& visit) {
  for (; values.size() >= kBlock; values = values.subspan(kBlock), code += kBlockBytes) {
    visit(values.data(), code, kBlock);
  }
  if (values.empty()) return;
  float block[kBlock] = {};
  std::ranges::copy(values, block);
  visit(block, code, values.size());
  std::copy_n(block, values.size(), values.data());
}

void encode_signs(std::span<float> values, std::byte* code) {
  for_each_block(values, code, encode_block);
}
void decode_signs(const std::byte* code, std::span<float> values) {
  for_each_block(values, code,
                 [](float* block, const std::byte* own, std::size_t /*count*/)
                     HWY_ATTR { decode_block(own, block); });
}

}  // namespace stormo::codec::sign::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::codec::sign {

void encode(std::span<float> values, std::byte* code, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(encode_signs)(values, code);
}
void decode_add(const std::byte* code, std::span<float> values, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(decode_signs)(code, values);
}

}  // namespace stormo::codec::sign
#endif
