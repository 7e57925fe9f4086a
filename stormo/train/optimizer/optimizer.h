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
  bool hidden = false;  ///< a matrix of a hidden layer, which Muon updates as one
};

/// The parameters of `module` that require a gradient, in the module's order. Hidden are the
/// matrices of a model::Chain but for those of its first and last segment; no other module says
/// which of its layers are.
std::vector<NamedParameter> trainable_parameters(const torch::nn::Module& module);
/// Bytes of all of them together.
std::int64_t bytes_of(const std::vector<NamedParameter>& parameters);

/// The factors of an update.
struct StepRate {
  double lr = 0;
  double gradient_scale = 1;  ///< factor of all gradients: clip_coefficient(), 1 / loss scale
  double loss = 0;            ///< mean of this rank's samples; optimizers that search need it
};

/// Updates a fixed list of parameters from their gradients. A parameter whose gradient is undefined
/// is not changed, as in torch::optim. Not thread-safe.
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

  /// Whether steps change nothing any more.
  virtual bool has_converged() const { return false; }
  /// No step follows: of an optimizer that searches, the parameters become the best ones found.
  virtual Status finish() { return {}; }

  /// Sets the gradients to undefined, so that autograd allocates new ones instead of adding into
  /// them.
  void zero_grad();

  /// State for checkpoints: "optimizer.<slot>.<parameter>", of whole parameters.
  virtual std::map<std::string, torch::Tensor> state() const = 0;
  /// Restores a state() by copying. kInvalidArgument names a tensor that is unknown, lacks other
  /// slots of its parameter, or has another shape or dtype; nothing is changed then.
  virtual Status load_state(const std::map<std::string, torch::Tensor>& state) = 0;

  const std::vector<NamedParameter>& parameters() const { return parameters_; }

 protected:
  explicit Optimizer(std::vector<NamedParameter> parameters) : parameters_(std::move(parameters)) {}

  std::vector<NamedParameter> parameters_;
};

/// A FusedOptimizer that owns all of its parameters, or a LbfgsOptimizer. Throws Error as its
/// constructor does.
std::unique_ptr<Optimizer> make_optimizer(const OptimizerOptions& options,
                                          std::vector<NamedParameter> parameters);

/// The factor, at most 1, that reduces gradients of norm `norm` to at most `max_norm`, as in
/// torch::nn::utils::clip_grad_norm_. kInvalidArgument unless max_norm > 0.
Result<double> clip_coefficient(double norm, double max_norm);

/// Scales all gradients in place so that their global 2-norm is at most `max_norm`; returns the
/// norm before. For a user's own loop; an Optimizer can scale in its update
/// (StepRate::gradient_scale).
Result<double> clip_gradients(const std::vector<NamedParameter>& parameters, double max_norm);

}  // namespace stormo::train
