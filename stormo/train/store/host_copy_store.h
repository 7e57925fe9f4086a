#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/store/host_copy.h>
#include <stormo/train/store/host_gradients.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// As HostSharedStore, for plans that commit: a rank that is lost after a commit takes nothing with
/// it. Every rank counts as one that has all of parameters and state.
class HostCopyStore final : public ParameterStore {
 public:
  /// `optimizer` is a FusedOptimizer of whole parameters. Not a collective. Throws Error. The
  /// groups of `groups` are borrowed.
  HostCopyStore(const AxisGroups& groups, std::unique_ptr<Optimizer> optimizer);

  /// As HostCopy::create(), when the optimizer has its state. Before set_plan(), which else takes
  /// the values that all ranks have. A collective. Throws Error, too.
  Status share(const HostCopy::Kept& before, bool has_state);
  /// Null before share().
  HostCopy::Memory memory() const { return copy_ ? copy_->memory() : nullptr; }
  /// Whether a rank has the whole reduced gradient, as between hosts; else terms that others have.
  bool has_whole_gradients() const { return between_hosts_ != nullptr; }

  /// The group has failed after an update(): performs what others of this host have left of it. Not
  /// a collective.
  Status finish_update();
  /// The group has failed before it: from now on update() performs all of it. `say`: as
  /// HostCopy::finish().
  void expect_nobody() { is_alone_ = true; }
  void set_say(std::function<void(const std::string&)> say) { say_ = std::move(say); }

  void set_plan(const plan::StepPlan& plan) override;
  void begin_backward(bool last) override;
  Status perform(const plan::Action& action, double weight) override;
  Status finish_gradients() override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& all, const StepRate& rate) override;
  void zero_grad() override;
  Optimizer& optimizer() override { return *optimizer_; }
  std::unique_ptr<Optimizer> take_optimizer() override;

 private:
  std::vector<RangeGradient> gradients();

  comm::Communicator& world_;
  comm::Communicator& host_;
  std::unique_ptr<Optimizer> optimizer_;
  std::unique_ptr<HostGradients> posted_;           // null between hosts
  std::unique_ptr<GradientReducer> between_hosts_;  // null on one host
  std::unique_ptr<HostCopy> copy_;
  std::vector<torch::Tensor> reduced_;              // what gradients() points to, between hosts
  std::vector<optim::GradientTerm> reduced_terms_;  // likewise, by parameter
  bool is_alone_ = false;
  std::function<void(const std::string&)> say_ = [](const std::string&) {};
};

}  // namespace stormo::train
