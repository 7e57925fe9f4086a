#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <torch/nn/module.h>
#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// The parameters of a module whose gradients are averaged: those that have been trainable since
/// the module was wrapped, so that freezing and thawing them is no change.
class WrappedParameters {
 public:
  explicit WrappedParameters(std::shared_ptr<torch::nn::Module> module);
  ~WrappedParameters();
  WrappedParameters(const WrappedParameters&) = delete;

  const std::vector<NamedParameter>& list() const { return list_; }
  std::vector<torch::Tensor> tensors() const;

  /// Whether the module has other trainable parameters than the list, or of another type or size:
  /// they were thawed, added, replaced, or converted. Costs less than 1 us for each parameter.
  bool changed() const;
  /// The list becomes that of the module as it is now.
  void renew();

  /// kInvalidArgument names a parameter that another WrappedParameters has as well: its gradient
  /// would be averaged twice.
  Status check_alone() const;
  static bool is_wrapped(const torch::Tensor& parameter);

 private:
  /// What a parameter of the module was at the last renew().
  struct Seen {
    torch::Tensor tensor;
    torch::ScalarType type;
    std::int64_t count;
    bool listed;
  };
  std::shared_ptr<torch::nn::Module> module_;
  std::vector<NamedParameter> list_;
  std::vector<Seen> seen_;  // of all parameters, in the module's order
};

}  // namespace stormo::train
