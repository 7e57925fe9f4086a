// Float reductions in one pass: strip by strip, accumulate in registers, then write the strip to
// every destination. 16-bit floats are added as float32 and rounded once. Two operands, the common
// case, have a loop of their own.
// Highway compiles the file once per instruction set; the best one is taken at run time.
// Targets between the ones kept bring nothing to loops that memory bounds, but cost compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/comm/kernels/kernels_float.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>

#include <stormo/base/instruction_sets.h>
#include <stormo/comm/kernels/kernels_detail.h>
#include <stormo/base/float_vectors.inc>

HWY_BEFORE_NAMESPACE();
namespace stormo::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;
using namespace stormo::HWY_NAMESPACE;  // the formats

/// bfloat16 as results of reductions. What is not a number came of bfloat16, so that the lower half
/// is empty: rounding leaves it alone, and no lane has to be looked at.
struct ReducedBFloat16 : BFloat16 {
  template <class D>
  static HWY_INLINE hn::Vec<hn::Rebind<std::int16_t, D>> narrow(D d, hn::Vec<D> v) {
    return upper_halves(d, round_number_to_upper_half(d, v));
  }
};

#if HWY_TARGET == HWY_SCALAR
using ReducedBFloat16Pairs = ReducedBFloat16;
#else
template <class V>
struct Pair {
  V even, odd;
};

/// ReducedBFloat16, two vectors of D at a time: of the even and of the odd elements, which takes no
/// shuffle. D is a tag of full vectors.
struct ReducedBFloat16Pairs {
  using Stored = std::uint16_t;
  using Computed = float;
  template <class D>
  static HWY_INLINE Pair<hn::Vec<D>> load(D d, const std::uint16_t* p) {
    const hn::RebindToUnsigned<D> u32;
    const auto both = hn::BitCast(u32, hn::LoadU(hn::Repartition<std::uint16_t, D>(), p));
    return {hn::BitCast(d, hn::ShiftLeft<16>(both)),
            hn::BitCast(d, hn::And(both, hn::Set(u32, 0xffff0000)))};
  }
  template <class D>
  static HWY_INLINE hn::Vec<hn::Repartition<std::uint16_t, D>> narrow(D d, Pair<hn::Vec<D>> v) {
    const hn::Repartition<std::uint16_t, D> u16;
    const auto even = hn::ShiftRight<16>(round_number_to_upper_half(d, v.even));
    const auto odd = round_number_to_upper_half(d, v.odd);
    return hn::OddEven(hn::BitCast(u16, odd), hn::BitCast(u16, even));
  }
  template <class D>
  static HWY_INLINE void store(D, hn::Vec<hn::Repartition<std::uint16_t, D>> narrowed,
                               std::uint16_t* p) {
    hn::StoreU(narrowed, hn::Repartition<std::uint16_t, D>(), p);
  }
};
#endif

// kScaled: whether any scale is not 1. Where none is, sums of 16-bit floats gain a quarter.

template <bool kScaled, class D, class V>
HWY_INLINE V scaled(D d, V x, double scale) {
  if constexpr (!kScaled) return x;
  return hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(scale)));
}

/// acc = acc (+) s * x. The product is rounded, as that of a rank that scales what it sends: a sum
/// has the same bits wherever its terms come from, and with or without an instruction for both.
template <bool kScaled, class D, class V>
HWY_INLINE V combine(D d, Combine how, V acc, V x, double scale) {
  switch (how) {
    case Combine::kMin: return hn::Min(acc, x);
    case Combine::kMax: return hn::Max(acc, x);
    case Combine::kProduct: return hn::Mul(acc, x);
    default: break;
  }
  return hn::Add(acc, scaled<kScaled>(d, x, scale));
}

#if HWY_TARGET != HWY_SCALAR
template <bool kScaled, class D, class V>
HWY_INLINE Pair<V> scaled(D d, Pair<V> x, double scale) {
  return {scaled<kScaled>(d, x.even, scale), scaled<kScaled>(d, x.odd, scale)};
}

template <bool kScaled, class D, class V>
HWY_INLINE Pair<V> combine(D d, Combine how, Pair<V> acc, Pair<V> x, double scale) {
  return {combine<kScaled>(d, how, acc.even, x.even, scale),
          combine<kScaled>(d, how, acc.odd, x.odd, scale)};
}
#endif

/// Vectors of D in a step, which is what Format::load takes at a time.
template <class Format, class D>
inline constexpr std::size_t kVectorsOf =
    sizeof(decltype(Format::load(D(), nullptr))) / sizeof(hn::Vec<D>);

/// Elements of a step.
template <class Format, class D>
HWY_INLINE std::int64_t step(D d) {
  return static_cast<std::int64_t>(kVectorsOf<Format, D> * hn::Lanes(d));
}

/// `kSteps` steps of all sources from element i, in registers, to every destination.
template <bool kScaled, std::size_t kSteps, class Format, class D>
HWY_INLINE void reduce_strip(D d, Combine how, std::span<const Operand> sources,
                             std::span<void* const> destinations, std::int64_t i) {
  using Stored = typename Format::Stored;
  const auto at = [&](std::size_t k) { return i + static_cast<std::int64_t>(k) * step<Format>(d); };
  const auto load = [&](const Operand& o, std::size_t k) HWY_ATTR {
    return Format::load(d, static_cast<const Stored*>(o.data) + at(k));
  };
  decltype(Format::load(d, nullptr)) acc[kSteps];
  for (std::size_t k = 0; k < kSteps; ++k) {
    acc[k] = load(sources[0], k);
    if (how == Combine::kSum) acc[k] = scaled<kScaled>(d, acc[k], sources[0].scale);
  }
  for (const Operand& o : sources.subspan(1)) {
    for (std::size_t k = 0; k < kSteps; ++k) {
      acc[k] = combine<kScaled>(d, how, acc[k], load(o, k), o.scale);
    }
  }
  decltype(Format::narrow(d, acc[0])) narrow[kSteps];
  for (std::size_t k = 0; k < kSteps; ++k) narrow[k] = Format::narrow(d, acc[k]);
  for (void* to : destinations) {
    for (std::size_t k = 0; k < kSteps; ++k) {
      Format::store(d, narrow[k], static_cast<Stored*>(to) + at(k));
    }
  }
}

/// The sum of two from element i.
template <bool kScaled, class Format, class D>
HWY_INLINE void sum_two(D d, const Operand& a, const Operand& b, typename Format::Stored* out0,
                        typename Format::Stored* out1, std::int64_t i) {
  using Stored = typename Format::Stored;
  const auto x = Format::load(d, static_cast<const Stored*>(a.data) + i);
  const auto y = Format::load(d, static_cast<const Stored*>(b.data) + i);
  const auto first = scaled<kScaled>(d, x, a.scale);
  const auto sum = combine<kScaled>(d, Combine::kSum, first, y, b.scale);
  const auto narrow = Format::narrow(d, sum);
  Format::store(d, narrow, out0 + i);
  Format::store(d, narrow, out1 + i);
}

// The operands are copies, which stay in registers: what is written could be the caller's.
template <bool kScaled, class Format, class Single>
void sum_pair(const Operand a, const Operand b, typename Format::Stored* out0,
              typename Format::Stored* out1, std::int64_t count) {
  const hn::ScalableTag<typename Format::Computed> d;
  const hn::CappedTag<typename Format::Computed, 1> one;
  const std::int64_t each = step<Format>(d);
  std::int64_t i = 0;
  for (; i + each <= count; i += each) sum_two<kScaled, Format>(d, a, b, out0, out1, i);
  for (; i < count; ++i) sum_two<kScaled, Single>(one, a, b, out0, out1, i);
}

/// Strips, then single steps, then single elements.
template <bool kScaled, class Format, class Single>
void reduce_many(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
                 std::int64_t count) {
  const hn::ScalableTag<typename Format::Computed> d;
  const hn::CappedTag<typename Format::Computed, 1> one;
  constexpr std::size_t kSteps = 8 / kVectorsOf<Format, decltype(d)>;  // about half the registers
  const std::int64_t each = step<Format>(d);
  const std::int64_t strip = each * static_cast<std::int64_t>(kSteps);
  std::int64_t i = 0;
  for (; i + strip <= count; i += strip) {
    reduce_strip<kScaled, kSteps, Format>(d, how, sources, destinations, i);
  }
  for (; i + each <= count; i += each) {
    reduce_strip<kScaled, 1, Format>(d, how, sources, destinations, i);
  }
  for (; i < count; ++i) reduce_strip<kScaled, 1, Single>(one, how, sources, destinations, i);
}

template <bool kScaled, class Format, class Single>
void reduce_any(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
                std::int64_t count) {
  using Stored = typename Format::Stored;
  if (how == Combine::kSum && sources.size() == 2 && !destinations.empty() &&
      destinations.size() <= 2) {
    auto* const out0 = static_cast<Stored*>(destinations.front());
    auto* const out1 = static_cast<Stored*>(destinations.back());
    sum_pair<kScaled, Format, Single>(sources[0], sources[1], out0, out1, count);
  } else {
    reduce_many<kScaled, Format, Single>(how, sources, destinations, count);
  }
}

/// Elements that fill no step are taken as `Single`, which reads vectors of any length.
template <class Format, class Single = Format>
void reduce_as(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
               std::int64_t count) {
  if (sources.empty()) {
    return clear(destinations, static_cast<std::size_t>(count) * sizeof(typename Format::Stored));
  }
  const bool plain = std::ranges::all_of(sources, [](const Operand& o) { return o.scale == 1; });
  const auto run = plain ? reduce_any<false, Format, Single> : reduce_any<true, Format, Single>;
  run(how, sources, destinations, count);
}

// One function per type, since STORMO_BEST_VERSION takes no templates.
void reduce_float32(Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count) {
  reduce_as<Plain<float>>(how, sources, destinations, count);
}

void reduce_float64(Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count) {
  reduce_as<Plain<double>>(how, sources, destinations, count);
}

void reduce_bfloat16(Combine how, std::span<const Operand> sources,
                     std::span<void* const> destinations, std::int64_t count) {
  reduce_as<ReducedBFloat16Pairs, ReducedBFloat16>(how, sources, destinations, count);
}

void reduce_float16(Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count) {
  reduce_as<Float16>(how, sources, destinations, count);
}

}  // namespace stormo::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::comm {

Kernel kernel_of_float(DType dtype) {
  switch (dtype) {
    case DType::kFloat64: return STORMO_BEST_VERSION(reduce_float64);
    case DType::kBFloat16: return STORMO_BEST_VERSION(reduce_bfloat16);
    case DType::kFloat16: return STORMO_BEST_VERSION(reduce_float16);
    default: return STORMO_BEST_VERSION(reduce_float32);
  }
}

}  // namespace stormo::comm
#endif  // HWY_ONCE
