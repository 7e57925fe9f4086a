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
#include <stormo/base/half_vectors.inc>

HWY_BEFORE_NAMESPACE();
namespace stormo::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using stormo::HWY_NAMESPACE::BFloat16;
using stormo::HWY_NAMESPACE::Float16;

using F32 = hn::ScalableTag<float>;
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
    return Half::load(F32(), static_cast<const std::uint16_t*>(o.data) + i);
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
    for (void* to : destinations) Half::store(F32(), acc, static_cast<std::uint16_t*>(to) + i);
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
                          : combine(how, hn::Load(F32(), acc.data()),
                                    Half::load(F32(), half.data()), static_cast<float>(one.scale));
    hn::Store(x, F32(), acc.data());
  }
  Half::store(F32(), hn::Load(F32(), acc.data()), half.data());
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
