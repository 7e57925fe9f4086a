#pragma once

#include <cstdint>
#include <span>

#include <stormo/comm/kernels/kernels.h>

// The families of element types behind reduce(); count > 0, at least one source.
namespace stormo::comm {

void reduce_float(DType dtype, Combine how, std::span<const Operand> sources,
                  std::span<void* const> destinations, std::int64_t count);
void reduce_integer(DType dtype, Combine how, std::span<const Operand> sources,
                    std::span<void* const> destinations, std::int64_t count);

}  // namespace stormo::comm
