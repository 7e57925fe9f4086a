#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/train/backward_reducer.h>
#include <stormo/train/fused_optimizer.h>
#include <stormo/train/host_shared_parameters.h>
#include <stormo/train/parameter_store.h>

namespace stormo::train {

/// One copy of parameters and optimizer state per host; see HostSharedParameters. On one host an
/// update reads the ranks' gradients where they lie. Between hosts gradients are averaged as
/// replicas do, with overlap, and each host's owners then update its copy.
class HostSharedStore final : public ParameterStore {
 public:
  /// A collective. All parameters are reduced and updated at once. Throws Error.
  HostSharedStore(comm::Communicator& world, const OptimizerOptions& options,
                  const std::vector<NamedParameter>& parameters, const Reduction& how);

  void begin_pass(double weight, bool last) override;
  Status reduce_scatter(const ParameterRange& all, double weight) override;
  Status all_reduce(const ParameterRange& all, double weight) override;
  Result<double> gradient_norm() override;
  Status update(const ParameterRange& all, const StepRate& rate) override;
  Status gather() override { return shared_.release(); }
  Optimizer& optimizer() override { return optimizer_; }
  bool whole() const override { return false; }
  std::vector<TensorPiece> pieces() const override;
  Status load_state(const ReadState& read) override { return optimizer_.load_state(read); }
  std::string describe() const override;

 private:
  bool saves_;  // this host's copy is the one that is saved
  HostSharedParameters shared_;
  FusedOptimizer optimizer_;
  std::unique_ptr<BackwardReducer> between_hosts_;  // null on one host
};

}  // namespace stormo::train
