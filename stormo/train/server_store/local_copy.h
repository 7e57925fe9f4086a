#pragma once

#include <vector>

#include <torch/types.h>

#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// What a worker of parameter servers does by itself between pulls and pushes (Downpour SGD; Dean
/// et al., NIPS 2012): each gradient moves its copy of the parameters by plain SGD, and is added to
/// what the next push gives to the servers.
class LocalCopy {
 public:
  /// w -= lr * gradient_scale * g for the parameters, and g * gradient_scale is added. `gradients`:
  /// one for each parameter, undefined ones count as zero.
  void step(const std::vector<NamedParameter>& parameters,
            const std::vector<torch::Tensor>& gradients, const StepRate& rate);
  /// The sums since the call before, by parameter; undefined where no step had a gradient.
  std::vector<torch::Tensor> take();

 private:
  std::vector<torch::Tensor> sums_;
};

}  // namespace stormo::train
