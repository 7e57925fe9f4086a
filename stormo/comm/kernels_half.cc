// Reductions of 16-bit floats: widen to float32, combine there, narrow once, to nearest even.
// Vector by vector over all sources, so that nothing but the result is ever rounded.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/comm/kernels_half.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <array>
#include <cstring>

#include <stormo/comm/kernels_detail.h>

HWY_BEFORE_NAMESPACE();
namespace stormo::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

using F32 = hn::ScalableTag<float>;
using U32 = hn::RebindToUnsigned<F32>;
using U16 = hn::Rebind<std::uint16_t, U32>;

/// bfloat16 is the upper half of a float32.
struct BFloat16 {
  static HWY_INLINE hn::Vec<F32> load(const std::uint16_t* p) {
    const auto wide = hn::PromoteTo(U32(), hn::LoadU(U16(), p));
    return hn::BitCast(F32(), hn::ShiftLeft<16>(wide));
  }
  static HWY_INLINE void store(hn::Vec<F32> v, std::uint16_t* p) {
    const U32 u;
    const auto bits = hn::BitCast(u, v);
    const auto odd = hn::And(hn::ShiftRight<16>(bits), hn::Set(u, 1));
    const auto rounded = hn::Add(bits, hn::Add(odd, hn::Set(u, 0x7fff)));
    // a NaN keeps its upper bits and stays quiet; rounding could turn it into an infinity
    const auto nan = hn::Or(bits, hn::Set(u, 0x400000));
    const auto chosen = hn::IfThenElse(hn::RebindMask(u, hn::IsNaN(v)), nan, rounded);
    const hn::Rebind<std::int32_t, F32> i32;
    // signed, so that the saturating pack keeps all 16 bits
    const auto upper = hn::ShiftRight<16>(hn::BitCast(i32, chosen));
    const hn::Rebind<std::int16_t, decltype(i32)> i16;
    hn::StoreU(hn::DemoteTo(i16, upper), i16, reinterpret_cast<std::int16_t*>(p));
  }
};

struct Float16 {
  using F16 = hn::Rebind<hwy::float16_t, F32>;
  static HWY_INLINE hn::Vec<F32> load(const std::uint16_t* p) {
    return hn::PromoteTo(F32(), hn::LoadU(F16(), reinterpret_cast<const hwy::float16_t*>(p)));
  }
  static HWY_INLINE void store(hn::Vec<F32> v, std::uint16_t* p) {
    hn::StoreU(hn::DemoteTo(F16(), v), F16(), reinterpret_cast<hwy::float16_t*>(p));
  }
};

HWY_INLINE hn::Vec<F32> combine(Combine how, hn::Vec<F32> acc, hn::Vec<F32> x, float scale) {
  switch (how) {
    case Combine::kMin: return hn::Min(acc, x);
    case Combine::kMax: return hn::Max(acc, x);
    case Combine::kProduct: return hn::Mul(acc, x);
    default: return hn::MulAdd(x, hn::Set(F32(), scale), acc);
  }
}

/// One vector of all sources at element i of `sources`, as float32.
template <class Half>
HWY_INLINE hn::Vec<F32> reduced(Combine how, std::span<const Operand> sources, std::int64_t i) {
  const auto at = [&](const Operand& o) {
    return Half::load(static_cast<const std::uint16_t*>(o.data) + i);
  };
  auto acc = at(sources.front());
  if (how == Combine::kSum) {
    acc = hn::Mul(acc, hn::Set(F32(), static_cast<float>(sources.front().scale)));
  }
  for (const Operand& o : sources.subspan(1)) {
    acc = combine(how, acc, at(o), static_cast<float>(o.scale));
  }
  return acc;
}

template <class Half>
void reduce_whole(Combine how, std::span<const Operand> sources,
                  std::span<void* const> destinations, std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto acc = reduced<Half>(how, sources, i);
    for (void* to : destinations) Half::store(acc, static_cast<std::uint16_t*>(to) + i);
  }
}

template <class Half>
void reduce_16(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
               std::int64_t count) {
  constexpr std::int64_t kMostLanes = HWY_MAX_BYTES / sizeof(float);
  const std::int64_t whole = count - count % static_cast<std::int64_t>(hn::Lanes(F32()));
  reduce_whole<Half>(how, sources, destinations, whole);
  if (whole == count) return;
  // the rest goes through a padded vector, one source after the other
  alignas(64) std::array<float, kMostLanes> acc{};
  alignas(64) std::array<std::uint16_t, kMostLanes> half{};
  const auto rest = static_cast<std::size_t>(count - whole) * sizeof(std::uint16_t);
  for (std::size_t s = 0; s < sources.size(); ++s) {
    std::memcpy(half.data(), static_cast<const std::uint16_t*>(sources[s].data) + whole, rest);
    const Operand one{half.data(), sources[s].scale};
    const auto x = s == 0 ? reduced<Half>(how, {&one, 1}, 0)
                          : combine(how, hn::Load(F32(), acc.data()), Half::load(half.data()),
                                    static_cast<float>(one.scale));
    hn::Store(x, F32(), acc.data());
  }
  Half::store(hn::Load(F32(), acc.data()), half.data());
  for (void* to : destinations) {
    std::memcpy(static_cast<std::uint16_t*>(to) + whole, half.data(), rest);
  }
}

void reduce_bfloat16(Combine how, std::span<const Operand> sources,
                     std::span<void* const> destinations, std::int64_t count) {
  reduce_16<BFloat16>(how, sources, destinations, count);
}

void reduce_float16(Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count) {
  reduce_16<Float16>(how, sources, destinations, count);
}

}  // namespace stormo::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::comm {

HWY_EXPORT(reduce_bfloat16);
HWY_EXPORT(reduce_float16);

void reduce_half(DType dtype, Combine how, std::span<const Operand> sources,
                 std::span<void* const> destinations, std::int64_t count) {
  if (dtype == DType::kBFloat16) {
    HWY_DYNAMIC_DISPATCH(reduce_bfloat16)(how, sources, destinations, count);
  } else {
    HWY_DYNAMIC_DISPATCH(reduce_float16)(how, sources, destinations, count);
  }
}

}  // namespace stormo::comm
#endif  // HWY_ONCE
