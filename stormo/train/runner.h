#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/lane_timer.h>
#include <stormo/train/parameter_store.h>
#include <stormo/train/precision.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// What one step did on this rank.
struct StepOutcome {
  double loss_sum = 0;       ///< over this rank's samples, before the update
  std::int64_t samples = 0;  ///< of this rank, may be 0
  bool skipped = false;      ///< no update, on any rank: a gradient overflowed in float16
};

/// What a Runner works with; all but the functions borrowed for its life.
struct RunnerParts {
  /// This rank's part of the next global batch; it may be empty.
  std::function<Result<data::Batch>()> load;
  Task task;
  ParameterStore& store;
  LaneTimer& lanes;
  /// Called before every update: whoever still reads the state waits there until it has.
  std::function<void()> before_update = [] {};
  GradScaler* scaler = nullptr;    ///< multiplies the loss; null: nothing does
  double clip_norm = 0;            ///< 0: off
  std::int64_t micro_batches = 1;  ///< passes of a rank's part; their gradients add up
};

/// Executes a StepPlan on one rank, action by action, and records an Event for each one. It knows
/// nothing of strategies: what differs between them is in the plan and in the ParameterStore.
class Runner {
 public:
  /// kBadPlan for a plan that is invalid, or that needs what a Task does not offer: a Task computes
  /// all of its segments in one forward.
  static Result<std::unique_ptr<Runner>> create(const plan::StepPlan& plan,
                                                const comm::Communicator& world, RunnerParts parts);

  /// One step. Exceptions of libtorch and of the task pass through; gradients are gone afterwards.
  Result<StepOutcome> step(double learning_rate);

 private:
  /// An Action with what it needs, found once.
  struct Operation {
    plan::Action action;
    ParameterRange parameters;
  };

  Runner(Rank rank, RunnerParts parts) : rank_(rank), parts_(std::move(parts)) {}
  bool has(plan::ActionKind kind) const;
  Status execute(const Operation& operation, double learning_rate);
  Status load();
  bool needs_equal_passes() const;
  /// Forward, loss and backward of all micro-batches but the last, which follows the plan.
  Status leading_micro_batches();
  void forward(bool last);
  Status loss();
  std::string where_not_finite(const data::Batch& batch) const;
  void backward();
  Status find_gradient_scale();
  Status update(const ParameterRange& range, double learning_rate);

  Rank rank_;
  RunnerParts parts_;
  std::vector<Operation> operations_;

  // The step that is being executed.
  std::vector<data::Batch> batches_;  // micro-batches
  std::size_t at_ = 0;                // of the current one
  torch::Tensor output_;
  torch::Tensor loss_;
  StepOutcome outcome_;
  std::optional<double> gradient_scale_;  // known at the first update
};

}  // namespace stormo::train
