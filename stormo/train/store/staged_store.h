#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/store/replicated_store.h>
#include <stormo/train/world/axis_groups.h>
#include <stormo/train/world/stage_link.h>

namespace stormo::train {

/// The parameters of one stage of a pipeline, with their optimizer state; replicas of the pipeline
/// average the gradients of each stage. Parameters of other stages have no memory between steps;
/// readable() gets them from the ranks that have them.
class StagedStore final : public ParameterStore {
 public:
  /// `groups` is borrowed and has a group over plan::kStageAxis. `plan` is that of all ranks.
  StagedStore(const AxisGroups& groups, const plan::StepPlan& plan,
              const std::shared_ptr<torch::nn::Module>& module, const OptimizerOptions& options,
              const ReductionOptions& how);
  ~StagedStore() override;

  Status check(const plan::StepPlan& plan) const override;
  void follow(const plan::StepPlan& plan) override;
  void begin_backward(bool last) override { own_->begin_backward(last); }
  Status perform(const plan::Action& action, double weight) override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& range, const StepRate& rate) override {
    return own_->update(range, rate);
  }
  void zero_grad() override { own_->zero_grad(); }
  StageLink* stages() override { return &link_; }
  Rank owner_of_buffer(const std::string& name) const override;

  bool always_readable() const override { return false; }
  std::shared_ptr<void> readable() override;
  void keep_values() override;
  Optimizer& optimizer() override { return own_->optimizer(); }
  bool whole() const override { return false; }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override;

 private:
  /// A parameter of the module, by its number in the plan.
  struct Parameter {
    NamedParameter named;
    std::vector<int> stages;  // that have it; the first one owns it
    bool trainable = true;
    bool has_storage = true;  // of its own, which can be freed
  };
  class Whole;

  bool is_own(const Parameter& p) const;
  bool has(const Parameter& p) const;
  /// Gives other stages' parameters memory and values, or takes it away.
  void gather();
  void release();
  Status sum_tied(Parameter& p);

  comm::Communicator& pipeline_;
  StageLink link_;
  std::vector<std::pair<std::string, int>> segments_;  // names, and their stages
  std::vector<Parameter> parameters_;
  FusedOptimizer* fused_ = nullptr;  // the optimizer of own_
  std::unique_ptr<ReplicatedStore> own_;
  bool saves_ = false;  // replicas have the same: one of them saves it
  bool kept_ = false;
};

}  // namespace stormo::train
