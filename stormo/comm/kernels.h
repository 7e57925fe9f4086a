#pragma once

#include <cstdint>
#include <span>

#include <stormo/base/dtype.h>

namespace stormo::comm {

/// The arithmetic of a reduction, after averages have been turned into scaled sums.
enum class Combine : std::uint8_t { kSum, kMin, kMax };

/// One input of a reduction. kSum multiplies it by `scale` (floating types only; integers need 1).
struct Operand {
  const void* data = nullptr;
  double scale = 1;
};

/// Every destination = combination of all sources, element by element, in the order of `sources`
/// (floating sums use fused multiply-add, bfloat16 accumulates in float32). One pass over memory;
/// destinations may be sources. No sources: destinations become zero. Result of an element does not
/// depend on its position, nor on `count`.
void reduce(DType dtype, Combine how, std::span<const Operand> sources,
            std::span<void* const> destinations, std::int64_t count);

}  // namespace stormo::comm
