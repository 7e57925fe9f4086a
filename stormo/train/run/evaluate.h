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
  std::optional<double> mae;  ///< mean absolute error, if targets are numbers
  std::optional<double> r2;   ///< coefficient of determination, if targets are numbers; at most 1
  std::int64_t samples = 0;
};

/// A collective; blocks. Evaluates `split` on all ranks together, every sample exactly once.
/// Batches do not depend on the number of ranks and are distributed in turn, so the result depends
/// on that number only by the order of one float64 sum. During the evaluation the module is in
/// evaluation mode and computes in the type of its parameters, independent of Task::autocast.
/// `together`: each rank has columns of all samples, and the forward of a batch is a collective.
/// The rank that has the targets counts.
Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split,
                            bool together = false);

}  // namespace stormo::train
