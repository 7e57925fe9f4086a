#pragma once

#include <map>
#include <memory>
#include <string>

#include <torch/optim/optimizer.h>

#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// The state of an optimizer of torch::optim as one tensor, "optimizer.archive": the bytes that its
/// own save() writes. They differ between ranks whose state is equal, since they hold addresses.
std::map<std::string, torch::Tensor> archive_of(const torch::optim::Optimizer& optimizer);
/// Loads the archive_of() an optimizer of the same kind with the same parameters in the same order.
/// kInvalidArgument says what does not match.
Status load_archive(torch::optim::Optimizer& optimizer,
                    const std::map<std::string, torch::Tensor>& state);

/// Adapts any torch::optim::Optimizer to the interface Optimizer. Only for replicated parameters,
/// which every rank updates. step() sets the learning rate of all parameter groups. Optimizers that
/// need a closure (LBFGS) are refused by their own step().
class TorchOptimizer final : public Optimizer {
 public:
  /// `parameters` are those that `optimizer` updates. Throws Error if it has others.
  TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                 std::vector<NamedParameter> parameters);

  Status step(const StepRate& rate, std::size_t first, std::size_t last) override;
  using Optimizer::step;

  /// archive_of() the optimizer.
  std::map<std::string, torch::Tensor> state() const override;
  Status load_state(const std::map<std::string, torch::Tensor>& state) override;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace stormo::train
