#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <stormo/protocol/elastic/average_history.h>

namespace stormo::train {

/// What a rank that trains on by itself between averages takes from one epoch to the next
/// (docs/adr/0040-elastic-replicas-that-differ.md).
struct LocalReplica {
  protocol::AverageHistory averages = {};
  std::int64_t samples = 0;  ///< of this rank, in committed steps since the last one
  /// Of an outer optimizer: the weights with which the present period began, by parameter; empty:
  /// it begins with the next update.
  std::vector<torch::Tensor> began_with = {};

  bool has_average_behind(std::int64_t step) const {
    return averages.last.step == static_cast<std::uint64_t>(step);
  }
  /// A period is over.
  void take(const protocol::AverageId& average) {
    averages.take(average);
    samples = 0;
    began_with.clear();
  }
};

}  // namespace stormo::train
