#pragma once

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/conv.h>
#include <torch/types.h>

#include <stormo/plan/model/model_shape.h>
#include <stormo/tensor/grid.h>

// Layers of convolutional networks, of which ranks of a grid may have parts of the places. With a
// null grid, what libtorch computes of all places.
namespace stormo::model {

/// `window` is what the convolution reads.
torch::Tensor convolve(torch::nn::Conv2d& convolution, const torch::Tensor& x,
                       const plan::Window& window, const tensor::Grid* grid);

/// convolve() of relu(x). The result of relu is kept once for backward, with the places of others.
torch::Tensor convolve_rectified(torch::nn::Conv2d& convolution, const torch::Tensor& x,
                                 const plan::Window& window, const tensor::Grid* grid);

/// Maximum over windows.
torch::Tensor max_pool(const torch::Tensor& x, const plan::Window& window,
                       const tensor::Grid* grid);

/// In training over the places of all ranks; else `norm` alone.
torch::Tensor normalise(torch::nn::BatchNorm2d& norm, const torch::Tensor& x,
                        const tensor::Grid* grid);

}  // namespace stormo::model
