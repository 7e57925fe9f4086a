// Reductions of integers and truth values: no scale; sums and products wrap around (they are
// computed in the unsigned type). Blocks that stay in the L1 cache; loops that the compiler
// vectorises.
#include <algorithm>
#include <cstring>
#include <type_traits>

#include <stormo/base/check.h>
#include <stormo/comm/kernels/kernels_detail.h>

namespace stormo::comm {
namespace {

constexpr std::int64_t kBlock = 1024;

/// acc[i] = f(acc[i], x[i])
template <class T, class F>
void each(T* acc, const T* x, std::int64_t n, F f) {
  for (std::int64_t i = 0; i < n; ++i) acc[i] = static_cast<T>(f(acc[i], x[i]));
}

template <class T>
void combine(Combine how, T* acc, const T* x, std::int64_t n) {
  // wide enough that products of promoted types do not overflow as signed integers
  using U = std::conditional_t<sizeof(T) < 4, std::uint32_t, std::make_unsigned_t<T>>;
  const auto u = [](T v) { return static_cast<U>(v); };
  switch (how) {
    case Combine::kSum: return each(acc, x, n, [&](T a, T b) { return u(a) + u(b); });
    case Combine::kProduct: return each(acc, x, n, [&](T a, T b) { return u(a) * u(b); });
    case Combine::kMin: return each(acc, x, n, [](T a, T b) { return std::min(a, b); });
    case Combine::kMax: return each(acc, x, n, [](T a, T b) { return std::max(a, b); });
    case Combine::kBitAnd: return each(acc, x, n, [&](T a, T b) { return u(a) & u(b); });
    case Combine::kBitOr: return each(acc, x, n, [&](T a, T b) { return u(a) | u(b); });
    case Combine::kBitXor: return each(acc, x, n, [&](T a, T b) { return u(a) ^ u(b); });
    case Combine::kLogicalAnd:
      return each(acc, x, n, [](T a, T b) { return int{a != 0} & int{b != 0}; });
    case Combine::kLogicalOr:
      return each(acc, x, n, [](T a, T b) { return int{a != 0} | int{b != 0}; });
    case Combine::kLogicalXor:
      return each(acc, x, n, [](T a, T b) { return int{a != 0} ^ int { b != 0 }; });
  }
}

template <class T>
void reduce_blocks(Combine how, std::span<const Operand> sources,
                   std::span<void* const> destinations, std::int64_t count) {
  if (sources.empty()) return clear(destinations, static_cast<std::size_t>(count) * sizeof(T));
  alignas(64) T acc[kBlock];
  const bool logical =
      how == Combine::kLogicalAnd || how == Combine::kLogicalOr || how == Combine::kLogicalXor;
  for (std::int64_t begin = 0; begin < count; begin += kBlock) {
    const std::int64_t n = std::min(kBlock, count - begin);
    const auto bytes = static_cast<std::size_t>(n) * sizeof(T);
    std::memcpy(acc, static_cast<const T*>(sources.front().data) + begin, bytes);
    // truth values are 0 and 1 in the result, also of a single source
    if (logical) each(acc, acc, n, [](T a, T) { return int{a != 0}; });
    for (const Operand& o : sources.subspan(1)) {
      combine(how, acc, static_cast<const T*>(o.data) + begin, n);
    }
    for (void* to : destinations) std::memcpy(static_cast<T*>(to) + begin, acc, bytes);
  }
}

}  // namespace

Kernel kernel_of_integer(DType dtype) {
  switch (dtype) {
    case DType::kInt8: return reduce_blocks<std::int8_t>;
    case DType::kInt16: return reduce_blocks<std::int16_t>;
    case DType::kInt32: return reduce_blocks<std::int32_t>;
    case DType::kInt64: return reduce_blocks<std::int64_t>;
    case DType::kUInt8:
    case DType::kBool: return reduce_blocks<std::uint8_t>;
    case DType::kFloat32:
    case DType::kFloat64:
    case DType::kFloat16:
    case DType::kBFloat16: break;
  }
  STORMO_CHECK(false, "no integer type");
}

}  // namespace stormo::comm
