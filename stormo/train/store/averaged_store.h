#pragma once

#include <memory>
#include <vector>

#include <stormo/analysis/transfer/requests.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/store/averaged_state.h>
#include <stormo/train/world/axis_groups.h>

namespace stormo::train {

/// Parameters and optimizer state of its own on every rank, which each rank updates with its own
/// gradients, and which kAverage makes equal: weights and state w become sum(n_r * w_r) / sum(n_r),
/// with n_r the samples of rank r since the last average. Of 16-bit parameters the master weights
/// are averaged. The numbers of steps that rules count are averaged and rounded; they differ only
/// where a rank had no samples in some step. One all-reduce for the weights and for each slot of
/// the optimizer, of each dtype; the memory for it is as large as the parameters. Where replicas
/// are cut, they are those of this rank's part, which other replicas have too.
class AveragedStore final : public ParameterStore {
 public:
  /// `groups` is borrowed. `optimizer`: of the parameters. `counts`: see AveragedState.
  AveragedStore(const AxisGroups& groups, std::unique_ptr<FusedOptimizer> optimizer,
                const AveragedState::Counts& counts = {});

  void set_plan(const plan::StepPlan& plan) override;
  Status perform(const plan::Action& action, double weight) override;
  Result<double> gradient_norm() override { return optimizer_->gradient_norm(); }
  Status update(const ParameterRange& range, const StepRate& rate) override {
    return optimizer_->step(rate, range.first, range.last);
  }
  Optimizer& optimizer() override { return *optimizer_; }

 private:
  Status average(comm::Communicator& ranks, const std::vector<analysis::Collective>& sent,
                 double weight);
  Status mix(comm::Communicator& ranks, const std::vector<analysis::Collective>& sent);

  const AxisGroups& groups_;
  std::unique_ptr<FusedOptimizer> optimizer_;
  AveragedState state_;
  analysis::PlanRequests requests_;
};

}  // namespace stormo::train
