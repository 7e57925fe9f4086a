#pragma once

#include <memory>
#include <optional>
#include <string>

#include <stormo/base/status.h>
#include <stormo/train/autograd/precision.h>
#include <stormo/train/evaluation/segment_parts.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/step/runner.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// The model of a run on this rank: its parameters, the groups of ranks that compute it, and the
/// Runner of its steps. Every member function is a collective, unless noted otherwise.
class RunModel {
 public:
  /// `run` is borrowed.
  explicit RunModel(RunContext& run) : run_(run) {}

  /// Makes the store, of a checkpoint or of the initial values.
  Status make_parameters();
  /// Instead of make_parameters(), in an epoch that goes on: a store of the optimizer that this
  /// process has kept. Throws Error; then `kept` is as it was, or take_optimizer() has it.
  void go_on(std::unique_ptr<Optimizer>& kept);
  /// The optimizer of the store, for the next epoch; null before there is a store. Only destruction
  /// may follow. Not a collective.
  std::unique_ptr<Optimizer> take_optimizer();
  /// Makes the Runner. `parts`: load and agree; the rest is filled in.
  Status make_runner(RunnerParts parts);

  // Not collectives.
  bool has_store() const { return store_ != nullptr; }
  ParameterStore& store() { return *store_; }
  AxisGroups& groups() { return *groups_; }
  Runner& runner() { return *runner_; }
  /// Null: each rank evaluates the whole model.
  SegmentParts* parts() { return parts_ ? &*parts_ : nullptr; }
  /// What steps compute, which may be more than what is evaluated; with a store.
  Task task_of_steps() const;
  /// Whether no rank has ever had the whole.
  bool was_made_in_parts() const { return made_in_parts_; }
  void pass_no_events();

  /// All parameters can be read while the result lives, unless parts() shows them.
  GatheredParameters gather() { return parts_ ? nullptr : store_->gather(); }
  /// Where ranks have parts: all parameters can be read while it lives; null for a model that is
  /// too large.
  std::shared_ptr<void> whole();
  /// That the weights are equal on all ranks. Returns their hash.
  Result<std::string> check_weights();

 private:
  RunContext& run_;
  std::unique_ptr<AxisGroups> groups_;
  std::unique_ptr<ParameterStore> store_;
  std::optional<SegmentParts> parts_;  // ranks have parts of the model
  bool made_in_parts_ = false;
  std::unique_ptr<GradScaler> scaler_;  // in float16
  std::unique_ptr<Runner> runner_;
};

}  // namespace stormo::train
