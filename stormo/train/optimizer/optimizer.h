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
  bool sparse = false;  ///< a table whose gradients are sparse, see sparse_tables()
};

/// The parameters of `module` that require a gradient, in the module's order.
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module);
/// Of all of them together.
std::int64_t bytes_of(const std::vector<NamedParameter>& parameters);

/// What a step multiplies by.
struct StepRate {
  double lr = 0;
  double gradient_scale = 1;  ///< of all gradients: clip_coefficient(), 1 / loss scale
};

/// Updates a fixed list of parameters from their gradients. A parameter whose gradient is undefined
/// is left alone, as in torch::optim. Not thread-safe.
class Optimizer {
 public:
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One step over the parameters [first, last).
  virtual Status step(const StepRate& rate, std::size_t first, std::size_t last) = 0;
  Status step(double lr) { return step({.lr = lr}, 0, parameters_.size()); }

  /// The 2-norm of all gradients together.
  virtual Result<double> gradient_norm();

  /// Drops the gradients, so that autograd hands over fresh ones instead of adding into them.
  void zero_grad();

  /// State for checkpoints: "optimizer.<slot>.<parameter>", of whole parameters.
  virtual std::map<std::string, torch::Tensor> state() const = 0;
  /// Copies a state() back. kInvalidArgument names a tensor that is unknown, missing its partner
  /// slots or of another shape or dtype; nothing is changed then.
  virtual Status load_state(const std::map<std::string, torch::Tensor>& state) = 0;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 protected:
  explicit Optimizer(std::vector<NamedParameter> parameters) : parameters_(std::move(parameters)) {}

  std::vector<NamedParameter> parameters_;
};

/// A FusedOptimizer that owns all of its parameters. Throws Error as its constructor does.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<NamedParameter> parameters);

/// The factor that brings gradients of norm `norm` down to at most `max_norm`, never above 1, as in
/// torch::nn::utils::clip_grad_norm_. kInvalidArgument unless max_norm > 0.
Result<double> clip_coefficient(double norm, double max_norm);

/// Scales all gradients in place so that their global 2-norm is at most `max_norm`; returns the
/// norm before. For loops of one's own; an Optimizer scales while it updates
/// (StepRate::gradient_scale).
Result<double> clip_gradients(const std::vector<NamedParameter>& parameters, double max_norm);

}  // namespace stormo::train
