#pragma once

#include <algorithm>
#include <cstdint>

#include <torch/types.h>

namespace stormo::train {

/// Elements up to the next cache line.
inline std::int64_t aligned_elements(std::int64_t elements, torch::ScalarType type) {
  constexpr std::int64_t kLineBytes = 64;
  const auto step = kLineBytes / static_cast<std::int64_t>(torch::elementSize(type));
  return (elements + step - 1) / step * step;
}

/// Where part `part` of so many elements begins that are cut into equal ones, at cache lines.
inline std::int64_t begin_of_part(std::int64_t elements, std::int64_t part, std::int64_t parts,
                                  torch::ScalarType type) {
  return std::min(elements, aligned_elements(elements * part / parts, type));
}

}  // namespace stormo::train
