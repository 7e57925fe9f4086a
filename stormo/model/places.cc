#include <stormo/model/places.h>

#include <ATen/ops/conv2d.h>
#include <ATen/ops/max_pool2d.h>

#include <stormo/tensor/batch_norm.h>

namespace stormo::model {

torch::Tensor convolve(torch::nn::Conv2d& convolution, const torch::Tensor& x,
                       const plan::Window& window, const tensor::Grid* grid) {
  if (grid == nullptr) return convolution->forward(x);
  return at::conv2d(halo_exchange(x, window, grid->rows(), grid->columns()), convolution->weight,
                    convolution->bias, window.stride);
}

torch::Tensor convolve_rectified(torch::nn::Conv2d& convolution, const torch::Tensor& x,
                                 const plan::Window& window, const tensor::Grid* grid) {
  if (grid == nullptr) return convolution->forward(torch::relu(x));
  torch::Tensor read = halo_exchange(x, window, grid->rows(), grid->columns());
  return at::conv2d(read.relu_(), convolution->weight, convolution->bias, window.stride);
}

torch::Tensor max_pool(const torch::Tensor& x, const plan::Window& window,
                       const tensor::Grid* grid) {
  const torch::Tensor read =
      grid == nullptr ? x : halo_exchange(x, window, grid->rows(), grid->columns());
  return at::max_pool2d(read, window.kernel, window.stride);
}

torch::Tensor normalise(torch::nn::BatchNorm2d& norm, const torch::Tensor& x,
                        const tensor::Grid* grid) {
  if (grid == nullptr || !norm->is_training()) return norm(x);
  return tensor::batch_norm(x, tensor::values_of(*norm),
                            {.ranks = grid->all(), .who = "batch normalisation"});
}

}  // namespace stormo::model
