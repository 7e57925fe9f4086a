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

struct Nearest {
  HWY_INLINE hn::Vec<Integers> operator()(hn::Vec<D> x, std::size_t /*index*/) const {
    return hn::NearestInt(x);
  }
};

/// The mean of floor(x + u), of u from 0 to 1, is x. `u` is a hash of a number's index and the seed
/// (two rounds of multiplication and shift, after C. Wellons, "Prospecting for hash functions").
template <int kBits>
struct Drawn {
  std::uint32_t low, high;  // of the seed

  HWY_INLINE hn::Vec<D> uniform(std::size_t index) const {
    const Words w;
    constexpr std::uint32_t kStep = 0x9e3779b9;
    auto h = hn::Mul(hn::Iota(w, 0), hn::Set(w, kStep));
    h = hn::Add(h, hn::Set(w, static_cast<std::uint32_t>(index) * kStep + low));
    h = hn::Mul(hn::Xor(h, hn::ShiftRight<16>(h)), hn::Set(w, 0x7feb352du));
    h = hn::Add(h, hn::Set(w, high));
    h = hn::Mul(hn::Xor(h, hn::ShiftRight<15>(h)), hn::Set(w, 0x846ca68bu));
    h = hn::ShiftRight<8>(hn::Xor(h, hn::ShiftRight<16>(h)));
    return hn::Mul(hn::ConvertTo(D(), hn::BitCast(Integers(), h)), hn::Set(D(), 0x1p-24f));
  }
  HWY_INLINE hn::Vec<Integers> operator()(hn::Vec<D> x, std::size_t index) const {
    const auto most = hn::Set(D(), static_cast<float>(kMost<kBits>));
    const auto drawn = hn::Floor(hn::Add(x, uniform(index)));
    return hn::ConvertTo(Integers(), hn::Max(hn::Neg(most), hn::Min(drawn, most)));
  }
};

/// `first`: index of the first value in its message.
template <int kBits, class Round>
void encode_block(float* values, std::byte* code, const Round& round, std::size_t first) {
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
    std::size_t i = first_of<kBits>(word);
    auto packed = hn::Zero(w);
    for (int bit = 0; bit < 32; bit += kBits, i += kLanes) {
      const auto v = hn::LoadU(d, values + i);
      const auto number = round(hn::Mul(v, inverse), first + i);
      hn::StoreU(hn::Sub(v, hn::Mul(hn::ConvertTo(d, number), by)), d, values + i);
      packed = hn::Or(packed, hn::ShiftLeftSame(hn::And(hn::BitCast(w, number), bits), bit));
    }
    hn::StoreU(packed, w, words + word);
  }
}

template <int kBits>
void decode_add_block(const std::byte* code, float* values) {
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

/// Calls visit(block, its code, index of its first value) for each; the last one may be a copy that
/// zeros fill.
template <int kBits, class Code, class Visit>
void for_each_block(std::span<float> values, Code* code, const Visit& visit) {
  std::size_t first = 0;
  for (; first + kBlock <= values.size(); first += kBlock, code += kBlockBytes<kBits>) {
    visit(values.data() + first, code, first);
  }
  const std::span<float> rest = values.subspan(first);
  if (rest.empty()) return;
  float block[kBlock] = {};
  std::ranges::copy(rest, block);
  visit(block, code, first);
  std::copy_n(block, rest.size(), rest.data());
}

template <int kBits, class Round>
void encode_rounded(std::span<float> values, std::byte* code, const Round& round) {
  for_each_block<kBits>(values, code,
                        [&](float* block, std::byte* own, std::size_t first)
                            HWY_ATTR { encode_block<kBits>(block, own, round, first); });
}
template <int kBits>
void encode_random(std::span<float> values, std::byte* code, std::uint64_t seed) {
  const Drawn<kBits> drawn = {static_cast<std::uint32_t>(seed),
                              static_cast<std::uint32_t>(seed >> 32)};
  encode_rounded<kBits>(values, code, drawn);
}
template <int kBits>
void decode(const std::byte* code, std::span<float> values) {
  for_each_block<kBits>(values, code,
                        [](float* block, const std::byte* own, std::size_t /*first*/)
                            HWY_ATTR { decode_add_block<kBits>(own, block); });
}

// What the linker sees.
void nearest8(std::span<float> values, std::byte* code) {
  encode_rounded<8>(values, code, Nearest());
}
void nearest4(std::span<float> values, std::byte* code) {
  encode_rounded<4>(values, code, Nearest());
}
void drawn4(std::span<float> values, std::byte* code, std::uint64_t seed) {
  encode_random<4>(values, code, seed);
}
void drawn2(std::span<float> values, std::byte* code, std::uint64_t seed) {
  encode_random<2>(values, code, seed);
}
void decode8(const std::byte* code, std::span<float> values) { decode<8>(code, values); }
void decode4(const std::byte* code, std::span<float> values) { decode<4>(code, values); }
void decode2(const std::byte* code, std::span<float> values) { decode<2>(code, values); }

}  // namespace stormo::codec::whole_numbers::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::codec::whole_numbers {

void encode_nearest8(std::span<float> values, std::byte* code, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(nearest8)(values, code);
}
void encode_nearest4(std::span<float> values, std::byte* code, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(nearest4)(values, code);
}
void encode_drawn4(std::span<float> values, std::byte* code, const CodeKey& key) {
  STORMO_BEST_VERSION(drawn4)(values, code, key.seed);
}
void encode_drawn2(std::span<float> values, std::byte* code, const CodeKey& key) {
  STORMO_BEST_VERSION(drawn2)(values, code, key.seed);
}
void decode_add8(const std::byte* code, std::span<float> values, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(decode8)(code, values);
}
void decode_add4(const std::byte* code, std::span<float> values, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(decode4)(code, values);
}
void decode_add2(const std::byte* code, std::span<float> values, const CodeKey& /*key*/) {
  STORMO_BEST_VERSION(decode2)(code, values);
}

}  // namespace stormo::codec::whole_numbers
#endif
