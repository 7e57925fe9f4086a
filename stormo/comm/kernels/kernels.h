#pragma once

#include <cstdint>
#include <functional>
#include <span>

#include <stormo/base/dtype.h>

namespace stormo::comm {

/// The arithmetic of a reduction, after averages have been turned into scaled sums. Floating types
/// know the first four; bool knows kMin, kMax (and, or) and all after them.
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

/// Every destination = combination of all sources, element by element, in the order of `sources`
/// (a scaled term is rounded before it is added, 16-bit floats accumulate in float32 and are
/// rounded once, to nearest even). One pass over memory; destinations may be sources. No sources:
/// destinations become zero. Result of an element does not depend on its position, nor on `count`.
void reduce(DType dtype, Combine how, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count);

/// acc[i] = acc[i] (+) x[i] for n elements, with a user's own operation.
using CombineFunction = std::function<void(const void* x, void* acc, std::int64_t n)>;

/// As above with `function`; scales are ignored.
void reduce(DType dtype, const CombineFunction& function, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count);

}  // namespace stormo::comm
