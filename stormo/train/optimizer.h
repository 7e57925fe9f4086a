#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/train/options.h>

namespace stormo::train {

struct NamedParameter {
  std::string name;  ///< dotted, as in torch::nn::Module::named_parameters()
  torch::Tensor tensor;
};

/// The parameters of `module` that require a gradient, in the module's order.
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module);

/// Updates a fixed list of parameters from their gradients. A parameter whose gradient is undefined
/// is left alone, as in torch::optim. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step at learning rate `lr` over the parameters [first, last).
  virtual void step(double lr, std::size_t first, std::size_t last) = 0;
  void step(double lr) { step(lr, 0, parameters_.size()); }

  /// Drops the gradients, so that autograd hands over fresh ones instead of adding into them.
  void zero_grad();

  /// State for checkpoints: "optimizer.<slot>.<parameter>"; tensors are shared, not copied.
  std::map<std::string, torch::Tensor> state() const;
  /// Copies a state() back. kInvalidArgument names a tensor that is unknown, missing its partner
  /// slots or of another shape or dtype; nothing is changed then.
  Status load_state(const std::map<std::string, torch::Tensor>& state);

  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 protected:
  /// Tensors that each parameter owns, by slot; empty until its first step.
  struct Slot {
    std::string name;
    std::vector<torch::Tensor> tensors;
    bool scalar = false;  ///< one float32 instead of the parameter's shape and dtype
  };
  Optimizer(std::vector<NamedParameter> parameters, std::vector<std::string> slot_names);

  std::vector<NamedParameter> parameters_;
  std::vector<Slot> slots_;
};

/// torch::optim::SGD's arithmetic, bit for bit; or AdamW by ATen's fused kernel, one call for all
/// tensors.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<NamedParameter> parameters);

/// Scales all gradients so that their global 2-norm is at most `max_norm`; returns the norm before.
double clip_gradients(const std::vector<NamedParameter>& parameters, double max_norm);

}  // namespace stormo::train
