#pragma once

#include <vector>

#include <torch/nn/module.h>

namespace stormo::train {

/// The trained tables with sparse gradients: the weights of torch::nn::Embedding and EmbeddingBag
/// made with sparse(true).
std::vector<torch::Tensor> sparse_tables(const torch::nn::Module& module);

}  // namespace stormo::train
