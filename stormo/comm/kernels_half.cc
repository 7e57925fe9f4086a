// Reductions of 16-bit floats: widen to float32, combine there, narrow once, to nearest even.
// Vector by vector over all sources, so that nothing but the result is ever rounded, and that once.
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

/// The vector at element i of the first source.
template <class Half>
HWY_INLINE hn::Vec<F32> first_term(Combine how, const Operand& o, std::int64_t i) {
  const auto x = Half::load(F32(), static_cast<const std::uint16_t*>(o.data) + i);
  return how == Combine::kSum ? hn::Mul(x, hn::Set(F32(), static_cast<float>(o.scale))) : x;
}

/// `acc` combined with the vector at element i of one more source.
template <class Half>
HWY_INLINE hn::Vec<F32> next_term(Combine how, hn::Vec<F32> acc, const Operand& o, std::int64_t i) {
  const auto x = Half::load(F32(), static_cast<const std::uint16_t*>(o.data) + i);
  return combine(how, acc, x, static_cast<float>(o.scale));
}

/// The sum of two, the common case. `count` is a multiple of a vector's lanes, here and below.
template <class Half>
void sum_pair(const Operand& a, const Operand& b, std::uint16_t* out0, std::uint16_t* out1,
              std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  const Operand x = a, y = b;  // in registers: what is written could be their scales
  for (std::int64_t i = 0; i < count; i += lanes) {
    const auto first = first_term<Half>(Combine::kSum, x, i);
    const auto narrow = Half::narrow(F32(), next_term<Half>(Combine::kSum, first, y, i));
    Half::store(F32(), narrow, out0 + i);
    Half::store(F32(), narrow, out1 + i);
  }
}

template <class Half>
void reduce_many(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
                 std::int64_t count) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(F32()));
  for (std::int64_t i = 0; i < count; i += lanes) {
    auto acc = first_term<Half>(how, sources.front(), i);
    for (const Operand& o : sources.subspan(1)) acc = next_term<Half>(how, acc, o, i);
    const auto narrow = Half::narrow(F32(), acc);
    for (void* to : destinations) {
      Half::store(F32(), narrow, static_cast<std::uint16_t*>(to) + i);
    }
  }
}

template <class Half>
void reduce_whole(Combine how, std::span<const Operand> sources,
                  std::span<void* const> destinations, std::int64_t count) {
  if (how == Combine::kSum && sources.size() == 2 && !destinations.empty() &&
      destinations.size() <= 2) {
    auto* const out0 = static_cast<std::uint16_t*>(destinations.front());
    auto* const out1 = static_cast<std::uint16_t*>(destinations.back());
    sum_pair<Half>(sources[0], sources[1], out0, out1, count);
  } else {
    reduce_many<Half>(how, sources, destinations, count);
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
    const auto x = s == 0 ? first_term<Half>(how, one, 0)
                          : next_term<Half>(how, hn::Load(F32(), acc.data()), one, 0);
    hn::Store(x, F32(), acc.data());
  }
  Half::store(F32(), Half::narrow(F32(), hn::Load(F32(), acc.data())), half.data());
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
