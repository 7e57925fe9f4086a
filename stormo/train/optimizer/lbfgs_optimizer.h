#pragma once

#include <map>
#include <string>
#include <vector>

#include <stormo/optim/lbfgs.h>
#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// L-BFGS in one process, see optim::Lbfgs. A step uses loss and gradient of one batch, and tries a
/// point: so the batch should be all samples, or many. Memory: 4 + 2 * history vectors of the size
/// of the parameters. A checkpoint has no state of it: a run that resumes begins with an empty
/// history.
class LbfgsOptimizer final : public Optimizer {
 public:
  /// Throws Error for parameters that are not contiguous float32 or float64 in host memory.
  LbfgsOptimizer(const OptimizerOptions& options, std::vector<NamedParameter> parameters);

  /// Over all parameters. Uses rate.loss.
  Status step(const StepRate& rate, std::size_t first, std::size_t last) override;
  using Optimizer::step;
  bool has_converged() const override { return has_converged_; }
  Status settle() override { return method_.settle(vectors_); }

  std::map<std::string, torch::Tensor> state() const override { return {}; }
  Status load_state(const std::map<std::string, torch::Tensor>& /*state*/) override { return {}; }

 private:
  /// Vectors as tensors, one for each parameter.
  class Vectors final : public optim::VectorSpace {
   public:
    Vectors(const std::vector<NamedParameter>& parameters, std::size_t count);
    Result<std::vector<double>> run(const optim::VectorProgram& program) override;
    StepRate rate;

   private:
    void combine(const optim::VectorStep& step, std::size_t parameter);
    double dot(const optim::VectorStep& step) const;
    const std::vector<NamedParameter>& parameters_;
    std::vector<std::vector<torch::Tensor>> vectors_;  // by number, then by parameter
  };

  optim::Lbfgs method_;
  Vectors vectors_;
  bool has_converged_ = false;
};

}  // namespace stormo::train
