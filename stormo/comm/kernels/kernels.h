#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <stormo/base/dtype.h>

namespace stormo::comm {

/// The arithmetic of a reduction; averages are computed as scaled sums. Integers support all of
/// these, floating types the first four, bool kMin, kMax (and, or) and all after them.
enum class Combine : std::uint8_t {
  kSum,
  kProduct,
  kMin,
  kMax,
  kBitAnd,
  kBitOr,
  kBitXor,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
};

/// One input of a reduction. kSum multiplies it by `scale` (floating types only; integers need 1).
struct Operand {
  const void* data = nullptr;
  double scale = 1;
};

/// Every destination = combination of all sources, element by element, in the order of `sources`. A
/// scaled term is rounded before it is added. 16-bit floats are accumulated in float32 and rounded
/// once, to nearest even. One pass over memory. A destination may also be a source. Without sources
/// destinations become zero. The result for an element does not depend on its position or on
/// `count`.
using Kernel = void (*)(Combine how, std::span<const Operand> sources,
                        std::span<void* const> destinations, std::int64_t count);
/// That of elements of this type; to choose it costs more than a short reduction.
Kernel kernel_of(DType dtype);
inline void reduce(DType dtype, Combine how, std::span<const Operand> sources,
                   std::span<void* const> destinations, std::int64_t count) {
  kernel_of(dtype)(how, sources, destinations, count);
}

/// A user-defined reduction: acc[i] = acc[i] (+) x[i] for n elements.
using CombineFunction = std::function<void(const void* x, void* acc, std::int64_t n)>;

/// As above with `function`; scales are ignored.
void reduce(DType dtype, const CombineFunction& function, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count);

}  // namespace stormo::comm
