#pragma once

#include <vector>

#include <torch/types.h>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/mixing/mixing.h>

namespace stormo::train {

/// What members of a population send each other: of numbers, weights and perhaps slots one tensor
/// each.
using SentModel = std::vector<torch::Tensor>;

/// Exchanges of models between neighbours.
class ModelExchange {
 public:
  ModelExchange() = default;
  /// What is still under way keeps its memory.
  ~ModelExchange();
  ModelExchange(const ModelExchange&) = delete;
  ModelExchange& operator=(const ModelExchange&) = delete;

  /// Sends `own` to this rank's neighbours of `round`, and waits for theirs, in ascending order of
  /// ranks. `sent`: what that is, by tensor.
  Result<std::vector<SentModel>> exchange(comm::Communicator& ranks,
                                          const plan::MixingMatrix& round,
                                          const std::vector<analysis::Collective>& sent,
                                          const SentModel& own);

 private:
  /// Of one tensor.
  struct Part {
    torch::Tensor own;
    torch::Tensor theirs;  ///< of each neighbour
    std::vector<comm::Work> works;
  };
  std::vector<Part> under_way_;
};

}  // namespace stormo::train
