#pragma once

#include <array>
#include <vector>

#include <torch/types.h>

#include <stormo/optim/update.h>

// The update rules of stormo/optim by operations of libtorch, for weights that lie in the memory of
// a device, and for the matrices of Muon. Results differ from those of optim::update() by rounding.
namespace stormo::train {

/// Tensors of one shape, type and device.
struct TensorUpdate {
  torch::Tensor weights;
  torch::Tensor gradient;                             ///< stays as it is
  std::array<torch::Tensor, optim::kMaxSlots> slots;  ///< in the order of slot_names()
};

/// As optim::update().
void update(const optim::Options& options, const optim::UpdateStep& step, TensorUpdate& of);

/// As optim::prepare(): the sums of squares of weights and direction, two numbers in float64, which
/// stay on the device.
torch::Tensor prepare(const optim::Options& options, const optim::UpdateStep& step,
                      TensorUpdate& of);

/// The sum of squares of all elements, in float64; it stays on the device.
torch::Tensor squares(const torch::Tensor& of);
/// The sum of such numbers, in their order; the host reads them in one transfer.
double sum_of(const std::vector<torch::Tensor>& numbers);

}  // namespace stormo::train
