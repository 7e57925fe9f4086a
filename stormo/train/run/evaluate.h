#pragma once

#include <cstdint>
#include <optional>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/task.h>

namespace stormo::train {

struct Evaluation {
  double loss = 0;  ///< mean over all samples
  std::optional<double> accuracy;
  std::optional<double> mae;  ///< mean absolute error, where targets are numbers
  std::optional<double> r2;   ///< share of the targets' variance that is explained; 1: all of it
  std::int64_t samples = 0;
};

/// Evaluates `split` on all ranks together, every sample exactly once. Batches are the same for any
/// number of ranks, which take them in turn; so the result depends on that number only by the order
/// of one float64 sum. The module is in evaluation mode meanwhile, and computes in the type of its
/// parameters whatever Task::autocast says: what is judged is what is saved. A collective: call on
/// every rank.
Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split);

}  // namespace stormo::train
