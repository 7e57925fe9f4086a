#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/gradient_reducer.h>
#include <stormo/train/lane_timer.h>
#include <stormo/train/optimizer.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// What one step did on this rank.
struct StepOutcome {
  double loss_sum = 0;       ///< over this rank's samples, before the update
  std::int64_t samples = 0;  ///< of this rank, may be 0
};

/// Executes a StepPlan on one rank, action by action, and records an Event for each one. It knows
/// nothing of strategies: all that differs between them is in the plan.
class Runner {
 public:
  /// This rank's part of the next global batch; it may be empty.
  using Load = std::function<Result<data::Batch>()>;

  /// `world`, `optimizer`, `lanes` are borrowed for the runner's life; `clip_norm` 0: off.
  /// kBadPlan for a plan that is invalid, or that needs what a Task does not offer: a Task computes
  /// all of its segments in one forward.
  static Result<std::unique_ptr<Runner>> create(const plan::StepPlan& plan,
                                                comm::Communicator& world, Task task, Load load,
                                                Optimizer& optimizer, double clip_norm,
                                                LaneTimer& lanes);

  /// One step. Exceptions of libtorch and of the task pass through; gradients are gone afterwards.
  Result<StepOutcome> step(double learning_rate);

 private:
  struct Range {
    std::size_t first = 0;
    std::size_t last = 0;  ///< one past the end
  };
  /// An Action with what it needs, found once.
  struct Operation {
    plan::Action action;
    Range parameters;
    std::unique_ptr<GradientReducer> reducer;  ///< kAllReduce
  };

  Runner(Task task, Load load, Optimizer& optimizer, double clip_norm, LaneTimer& lanes);
  Result<Operation> prepare(const plan::StepPlan& plan, const plan::Action& action,
                            comm::Communicator& world) const;
  Result<Range> parameters_of(const plan::ModelShape& model, const plan::Action& action) const;
  Status execute(Operation& operation, double learning_rate);
  Status load();
  void loss();
  Status update(const Range& range, double learning_rate);

  Task task_;
  Load load_;
  Optimizer& optimizer_;
  double clip_norm_;
  LaneTimer& lanes_;
  std::vector<Operation> operations_;

  // The step that is being executed.
  data::Batch batch_;
  torch::Tensor output_;
  torch::Tensor loss_;
  StepOutcome outcome_;
  std::optional<double> clip_scale_;  // known from the first update on
};

}  // namespace stormo::train
