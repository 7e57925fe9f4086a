#pragma once

#include <map>
#include <span>
#include <string>
#include <vector>

#include <stormo/optim/lbfgs.h>
#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// The tensor of a checkpoint with optim::Lbfgs::numbers(): float64, one dimension.
inline constexpr const char* kLbfgsNumbers = "optimizer.lbfgs";
torch::Tensor lbfgs_tensor(const std::vector<double>& numbers);
std::vector<double> lbfgs_numbers(const torch::Tensor& saved);

/// L-BFGS in one process, see optim::Lbfgs. A step uses loss and gradient of one batch, and tries a
/// point: so the batch should be all samples, or many. Memory: 4 + 2 * history vectors of the size
/// of the parameters, which are all in a checkpoint.
class LbfgsOptimizer final : public Optimizer {
 public:
  /// Throws Error for parameters that are not contiguous float32 or float64 in host memory.
  LbfgsOptimizer(const OptimizerOptions& options, std::vector<NamedParameter> parameters);

  /// Over all parameters. Uses rate.loss.
  Status step(const StepRate& rate, std::size_t first, std::size_t last) override;
  using Optimizer::step;
  bool has_converged() const override { return method_.has_converged(); }
  Status finish() override { return method_.finish(vectors_); }

  /// "optimizer.<vector>.<parameter>", see optim::Lbfgs::vector_names(), and kLbfgsNumbers. Empty
  /// before the first step.
  std::map<std::string, torch::Tensor> state() const override;
  /// An empty state: the history begins anew. Sets the parameters to those of the next step, if
  /// they were those of finish(). kInvalidArgument also for another history or weight_decay.
  Status load_state(const std::map<std::string, torch::Tensor>& state) override;

 private:
  /// Vectors as tensors, one for each parameter.
  class Vectors final : public optim::VectorSpace {
   public:
    Vectors(const std::vector<NamedParameter>& parameters, std::size_t count);
    Result<std::vector<double>> run(const optim::VectorProgram& program) override;
    StepRate rate;
    /// By vector from 1 on, then by parameter.
    std::span<const std::vector<torch::Tensor>> all() const {
      return std::span(vectors_).subspan(1);
    }

   private:
    void combine(const optim::VectorStep& step, std::size_t parameter);
    double dot(const optim::VectorStep& step) const;
    const std::vector<NamedParameter>& parameters_;
    std::vector<std::vector<torch::Tensor>> vectors_;  // by number, then by parameter
  };

  const OptimizerOptions options_;
  optim::Lbfgs method_;
  Vectors vectors_;
};

}  // namespace stormo::train
