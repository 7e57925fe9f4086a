#pragma once

#include <utility>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/train/reduction/gradient_reducer.h>

namespace stormo::train {

/// Gradients that the ranks of one worker, the axis plan::kWorkerAxis, average when backward is
/// over.
class WorkerGradients {
 public:
  /// `ranks` are borrowed. `done` is told of each action. Throws as GradientReducer.
  WorkerGradients(comm::Communicator& ranks, const std::vector<NamedParameter>& parameters,
                  DoneAction done);

  void set_plan(const plan::StepPlan& plan) { reducer_.set_plan(plan); }
  /// Performs `sum_weights` and `all_reduce`; `weight`: this rank's samples. Where no rank has
  /// samples there is nothing to average.
  Status perform(const plan::Action& action, double weight);
  void next_pass() { reducer_.next_pass(); }
  /// Of all ranks of the worker, in all passes.
  double samples() const { return samples_; }

  /// See ParameterStore.
  TensorMap residuals() const { return reducer_.residuals(); }
  void keep_residuals(TensorMap kept) { reducer_.keep_residuals(std::move(kept)); }

 private:
  GradientReducer reducer_;
  DoneAction done_;
  double samples_ = 0;
};

}  // namespace stormo::train
