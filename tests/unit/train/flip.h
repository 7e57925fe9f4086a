#pragma once

#include <cstdint>

#include <torch/types.h>

namespace stormo::test {

/// A wrong bit in host memory.
inline void flip(const torch::Tensor& t, std::int64_t byte = 2) {
  static_cast<std::uint8_t*>(t.mutable_data_ptr())[byte] ^= 1;
}

}  // namespace stormo::test
