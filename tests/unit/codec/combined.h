#pragma once

#include <cstddef>
#include <vector>

#include <stormo/codec/adasum.h>

namespace stormo::test {

/// What gradients of ranks become by Adasum, computed in one place: all parts of all ranks.
inline std::vector<float> combined(const std::vector<codec::MatrixShape>& gradients,
                                   const std::vector<std::vector<float>>& of_ranks) {
  const auto ranks = static_cast<int>(of_ranks.size());
  const codec::Adasum form(gradients, ranks);
  const auto each = static_cast<std::size_t>(form.part_numbers());
  std::vector<std::vector<float>> parts(of_ranks.size(),
                                        std::vector<float>(each * of_ranks.size()));
  for (std::size_t r = 0; r < of_ranks.size(); ++r) {
    for (std::size_t i = 0; i < of_ranks[r].size(); ++i) {
      parts[i / each][r * each + i % each] = of_ranks[r][i];
    }
  }
  for (int level = 0; level < form.levels(); ++level) {
    std::vector<double> sums(static_cast<std::size_t>(form.num_products(level)));
    for (int part = 0; part < ranks; ++part) {
      std::vector<double> products(sums.size(), 1e30);
      form.multiply(level, part, parts[static_cast<std::size_t>(part)], products);
      for (std::size_t i = 0; i < sums.size(); ++i) sums[i] += products[i];
    }
    for (int part = 0; part < ranks; ++part) {
      form.combine(level, part, sums, parts[static_cast<std::size_t>(part)]);
    }
  }
  std::vector<float> out(of_ranks.front().size());
  for (std::size_t i = 0; i < out.size(); ++i) out[i] = parts[i / each][i % each];
  return out;
}

}  // namespace stormo::test
