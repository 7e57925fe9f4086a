#pragma once

#include <cstdint>
#include <functional>
#include <optional>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/evaluation/segment_parts.h>
#include <stormo/train/task.h>

namespace stormo::train {

struct Evaluation {
  double loss = 0;  ///< mean over all samples
  std::optional<double> accuracy;
  std::optional<double> mae;  ///< mean absolute error, if targets are numbers
  /// Coefficient of determination, if targets are numbers; at most 1. Where all targets are equal,
  /// but for rounding: 1 if the errors are 0, else 0.
  std::optional<double> r2;
  std::int64_t samples = 0;
};

/// What ranks have of a model and of samples that they evaluate.
struct EvaluatedParts {
  /// Each rank has columns of all samples, and the forward of a batch is a collective. The rank
  /// that has the targets counts.
  bool columns = false;
  /// The ranks have parts of the model, which are made whole segment by segment. Null: each has the
  /// whole, or with `columns` computes with its part. Borrowed.
  SegmentParts* segments = nullptr;
  /// Called with the outputs of each batch of this rank and its targets; may be empty.
  std::function<void(const torch::Tensor& output, const torch::Tensor& target)> see{};
};

/// A collective; blocks. Evaluates `split` on all ranks together, every sample exactly once.
/// Batches do not depend on the number of ranks and are distributed in turn, so the result depends
/// on that number only by the order of one float64 sum. During the evaluation the module is in
/// evaluation mode and computes in the type of its parameters, independent of Task::autocast.
/// Where the ranks have parts of the model, each rank computes several batches at once, so that
/// segments are made whole less often: see SegmentParts::batches_at_once().
Result<Evaluation> evaluate(comm::Communicator& world, const Task& task, const EvalSplit& split,
                            const EvaluatedParts& parts = {});

/// Of the model that this rank has.
struct OwnEvaluation {
  double loss = 0;          ///< mean over all samples
  torch::Tensor predicted;  ///< int64: the likeliest classes; undefined where targets are none
};
/// Not a collective: samples [first, last) of `split`, at least one, as evaluate() computes them.
OwnEvaluation evaluate_own(const Task& task, const EvalSplit& split, std::int64_t first,
                           std::int64_t last);

}  // namespace stormo::train
