// Float reductions in one pass: strip by strip, accumulate in registers, then write the strip to
// every destination. Two operands, the common case, have a loop of their own.
// Highway compiles the file once per instruction set and picks at run time.
// Targets between the ones kept bring nothing to loops that memory bounds, but cost compile time.
#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/comm/kernels_float.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <algorithm>
#include <cstring>

#include <stormo/comm/kernels_detail.h>

HWY_BEFORE_NAMESPACE();
namespace stormo::comm::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

template <class D, class V>
HWY_INLINE V scaled(D d, V x, double scale) {
  return hn::Mul(x, hn::Set(d, static_cast<hn::TFromD<D>>(scale)));
}

/// acc = acc (+) s * x
template <class D, class V>
HWY_INLINE V combine(D d, Combine how, V acc, V x, double scale) {
  switch (how) {
    case Combine::kMin: return hn::Min(acc, x);
    case Combine::kMax: return hn::Max(acc, x);
    case Combine::kProduct: return hn::Mul(acc, x);
    default: break;
  }
  return hn::MulAdd(x, hn::Set(d, static_cast<hn::TFromD<D>>(scale)), acc);
}

/// One vector (or, with a one-lane D, one element) of a two-operand reduction.
template <class D, class T>
HWY_INLINE void reduce_two(D d, Combine how, const T* a, double sa, const T* b, double sb, T* out0,
                           T* out1, std::int64_t i) {
  const auto x = hn::LoadU(d, a + i);
  const auto first = how == Combine::kSum ? scaled(d, x, sa) : x;
  const auto sum = combine(d, how, first, hn::LoadU(d, b + i), sb);
  hn::StoreU(sum, d, out0 + i);
  hn::StoreU(sum, d, out1 + i);
}

template <class T>
void reduce_pair(Combine how, const Operand& a, const Operand& b, T* out0, T* out1,
                 std::int64_t count) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const T* x = static_cast<const T*>(a.data);
  const T* y = static_cast<const T*>(b.data);
  std::int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    reduce_two(d, how, x, a.scale, y, b.scale, out0, out1, i);
  }
  for (; i < count; ++i) reduce_two(one, how, x, a.scale, y, b.scale, out0, out1, i);
}

/// `kVectors` vectors of all sources from element i, in registers, to every destination.
template <std::size_t kVectors, class D, class T>
HWY_INLINE void reduce_strip(D d, Combine how, std::span<const Operand> sources,
                             std::span<void* const> destinations, std::int64_t i) {
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const auto load = [&](const Operand& o, std::size_t v) {
    return hn::LoadU(d, static_cast<const T*>(o.data) + i + static_cast<std::int64_t>(v) * lanes);
  };
  hn::Vec<D> acc[kVectors];
  for (std::size_t v = 0; v < kVectors; ++v) {
    acc[v] = load(sources[0], v);
    if (how == Combine::kSum) acc[v] = scaled(d, acc[v], sources[0].scale);
  }
  for (const Operand& o : sources.subspan(1)) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      acc[v] = combine(d, how, acc[v], load(o, v), o.scale);
    }
  }
  for (void* to : destinations) {
    for (std::size_t v = 0; v < kVectors; ++v) {
      hn::StoreU(acc[v], d, static_cast<T*>(to) + i + static_cast<std::int64_t>(v) * lanes);
    }
  }
}

template <class T>
void reduce_many(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
                 std::int64_t count) {
  constexpr std::size_t kVectors = 8;
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  const std::int64_t strip = lanes * static_cast<std::int64_t>(kVectors);
  std::int64_t i = 0;
  for (; i + strip <= count; i += strip) {
    reduce_strip<kVectors, decltype(d), T>(d, how, sources, destinations, i);
  }
  for (; i + lanes <= count; i += lanes) {
    reduce_strip<1, decltype(d), T>(d, how, sources, destinations, i);
  }
  for (; i < count; ++i) {
    reduce_strip<1, decltype(one), T>(one, how, sources, destinations, i);
  }
}

template <class T>
void reduce_floating(Combine how, std::span<const Operand> sources,
                     std::span<void* const> destinations, std::int64_t count) {
  if (sources.size() == 2 && !destinations.empty() && destinations.size() <= 2) {
    T* out0 = static_cast<T*>(destinations.front());
    T* out1 = static_cast<T*>(destinations.back());
    reduce_pair<T>(how, sources[0], sources[1], out0, out1, count);
  } else {
    reduce_many<T>(how, sources, destinations, count);
  }
}

void reduce_float32(Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count) {
  reduce_floating<float>(how, sources, destinations, count);
}

void reduce_float64(Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count) {
  reduce_floating<double>(how, sources, destinations, count);
}

}  // namespace stormo::comm::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::comm {

HWY_EXPORT(reduce_float32);
HWY_EXPORT(reduce_float64);

void reduce_float(DType dtype, Combine how, std::span<const Operand> sources,
                  std::span<void* const> destinations, std::int64_t count) {
  if (dtype == DType::kFloat32) {
    HWY_DYNAMIC_DISPATCH(reduce_float32)(how, sources, destinations, count);
  } else {
    HWY_DYNAMIC_DISPATCH(reduce_float64)(how, sources, destinations, count);
  }
}

}  // namespace stormo::comm
#endif  // HWY_ONCE
