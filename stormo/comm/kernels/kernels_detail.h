#pragma once

#include <cstddef>
#include <cstring>
#include <span>

#include <stormo/comm/kernels/kernels.h>

// Kernels by family of element types.
namespace stormo::comm {

Kernel kernel_of_float(DType dtype);
Kernel kernel_of_integer(DType dtype);

/// What is the sum of nothing.
inline void clear(std::span<void* const> destinations, std::size_t bytes) {
  for (void* to : destinations) {
    if (bytes > 0) std::memset(to, 0, bytes);  // empty buffers may be null
  }
}

}  // namespace stormo::comm
