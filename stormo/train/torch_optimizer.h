#pragma once

#include <memory>

#include <torch/optim/optimizer.h>

#include <stormo/train/optimizer.h>

namespace stormo::train {

/// Any torch::optim::Optimizer where an Optimizer is needed: replicated parameters only, updated by
/// every rank. step() sets the rate of all parameter groups. Optimizers that call a closure several
/// times (LBFGS) are refused by their own step().
class TorchOptimizer final : public Optimizer {
 public:
  /// `parameters` are those that `optimizer` updates. Throws Error if it has others.
  TorchOptimizer(std::unique_ptr<torch::optim::Optimizer> optimizer,
                 std::vector<NamedParameter> parameters);

  Status step(const StepRate& rate, std::size_t first, std::size_t last) override;
  using Optimizer::step;

  /// One tensor, "optimizer.archive": the bytes that the optimizer's own save() writes.
  std::map<std::string, torch::Tensor> state() const override;
  Status load_state(const std::map<std::string, torch::Tensor>& state) override;

 private:
  std::unique_ptr<torch::optim::Optimizer> optimizer_;
};

}  // namespace stormo::train
