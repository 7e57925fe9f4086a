#pragma once

#include <cstdint>
#include <span>

#include <stormo/comm/kernels/kernels.h>

// Implementations of reduce() by family of element types; count > 0, at least one source.
namespace stormo::comm {

void reduce_float(DType dtype, Combine how, std::span<const Operand> sources,
                  std::span<void* const> destinations, std::int64_t count);
void reduce_integer(DType dtype, Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count);

}  // namespace stormo::comm
