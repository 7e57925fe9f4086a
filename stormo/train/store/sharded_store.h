#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <stormo/plan/step_plan.h>
#include <stormo/train/options.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// What a sharded plan has in parts: 3 if it drops whole parameters, 2 if the terms of gradients go
/// before the update, else 1. See ShardingOptions::stage.
int sharding_stage(const plan::StepPlan& plan);

/// The codec in which a plan reduces these parameters to parts.
Codec codec_of_parts(const plan::StepPlan& plan, plan::Range parameters);

/// Parameters, gradients or optimizer state in parts, in the units of plan::units_of() of the
/// segments of this rank's stage; see ShardedUnits.
class ShardedStore final : public ParameterStore {
 public:
  /// Throws Error unless `module` is a model::Chain of the plan's segments. `groups` is borrowed.
  /// `plan` is that of all ranks. `bring`: see make_store(); empty where the module has values.
  ShardedStore(const AxisGroups& groups, const std::shared_ptr<torch::nn::Module>& module,
               const plan::StepPlan& plan, const OptimizerOptions& options,
               const MaterializeSegment& bring = {});

  void set_plan(const plan::StepPlan& plan) override;
  Status perform(const plan::Action& action, double weight) override;
  Status make_readable(plan::Range segments) override;
  Result<double> gradient_norm() override { return fsdp_.gradient_norm(); }
  Status update(const ParameterRange& all, const StepRate& rate) override;
  void zero_grad() override;
  GatheredParameters gather() override;
  GatheredParameters gather_segments(plan::Range segments) override;
  void keep_values() override { fsdp_.keep_gathered(); }
  /// The sum of squares of the gradients of this rank's parts, of the parameters whose name counts.
  /// Not a collective.
  double squares(const std::function<bool(const std::string&)>& counts) const;
  /// The reduced gradient of this rank's part of a parameter; null if it has no part. Behind
  /// find_unused and before the end of the step.
  torch::Tensor* gradient_of(const std::string& parameter);
  Optimizer& optimizer() override { return *optimizer_; }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override { return optimizer_->load_state(read); }
  TensorMap residuals() const override { return units_.residuals(); }
  void keep_residuals(TensorMap kept) override { units_.keep_residuals(std::move(kept)); }

 private:
  class Shown;

  /// `own`: this rank's part of the plan.
  void add_units(const model::Chain& chain, const plan::StepPlan& own,
                 const MaterializeSegment& bring);

  const AxisGroups& groups_;
  FullyShardedDataParallel fsdp_;
  ShardedUnits& units_;
  std::vector<std::vector<int>> reads_;  // units, by segment
  std::unique_ptr<FusedOptimizer> optimizer_;
};

}  // namespace stormo::train
