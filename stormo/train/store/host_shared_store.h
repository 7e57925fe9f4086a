#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/store/host_shared_parameters.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// One copy of parameters and optimizer state per host; see HostSharedParameters. On one host an
/// update reads the ranks' gradients where they lie. Between hosts gradients are averaged as
/// replicas do, with overlap, and each host's owners then update its copy.
class HostSharedStore final : public ParameterStore {
 public:
  /// A collective. All parameters are reduced and updated at once. Throws Error. The
  /// groups of `groups` are borrowed.
  HostSharedStore(const AxisGroups& groups, const OptimizerOptions& options,
                  const std::vector<NamedParameter>& parameters);

  void set_plan(const plan::StepPlan& plan) override;
  void begin_backward(bool last) override;
  Status perform(const plan::Action& action, double weight) override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& all, const StepRate& rate) override;
  void zero_grad() override;
  Optimizer& optimizer() override { return optimizer_; }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override { return optimizer_.load_state(read); }
  TensorMap residuals() const override {
    return between_hosts_ ? between_hosts_->residuals() : TensorMap();
  }
  void keep_residuals(TensorMap kept) override {
    if (between_hosts_) between_hosts_->keep_residuals(std::move(kept));
  }

 private:
  bool saves_;  // this host's copy is the one that is saved
  HostSharedParameters shared_;
  FusedOptimizer optimizer_;
  std::unique_ptr<GradientReducer> between_hosts_;  // null on one host
};

}  // namespace stormo::train
