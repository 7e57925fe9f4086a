// Float reductions in one pass: block by block, accumulate in a buffer that stays in the L1 cache,
// then write the block to every destination. Two operands, the common case, skip the buffer.
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

constexpr std::int64_t kBlock = 1024;  // elements: at most 8 KiB of accumulators

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

template <class D, class T>
HWY_INLINE void accumulate(D d, Combine how, bool first, T* acc, const T* x, double scale,
                           std::int64_t i) {
  const auto v = hn::LoadU(d, x + i);
  if (first) {
    hn::StoreU(how == Combine::kSum ? scaled(d, v, scale) : v, d, acc + i);
  } else {
    hn::StoreU(combine(d, how, hn::LoadU(d, acc + i), v, scale), d, acc + i);
  }
}

template <class T>
void reduce_many(Combine how, std::span<const Operand> sources, std::span<void* const> destinations,
                 std::int64_t count) {
  const hn::ScalableTag<T> d;
  const hn::CappedTag<T, 1> one;
  const auto lanes = static_cast<std::int64_t>(hn::Lanes(d));
  alignas(128) T acc[kBlock];
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    for (std::size_t s = 0; s < sources.size(); ++s) {
      const T* x = static_cast<const T*>(sources[s].data) + begin;
      std::int64_t i = 0;
      for (; i + lanes <= n; i += lanes) {
        accumulate(d, how, s == 0, acc, x, sources[s].scale, i);
      }
      for (; i < n; ++i) accumulate(one, how, s == 0, acc, x, sources[s].scale, i);
    }
    for (void* out : destinations) {
      std::memcpy(static_cast<T*>(out) + begin, acc, static_cast<std::size_t>(n) * sizeof(T));
    }
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
