#pragma once

#include <vector>

#include <torch/nn/module.h>

namespace stormo::train {

/// Tables of which a step touches few rows, so that their gradients are sparse tensors: the weights
/// of torch::nn::Embedding and EmbeddingBag built with sparse(true), as far as they are trained.
std::vector<torch::Tensor> sparse_tables(const torch::nn::Module& module);

}  // namespace stormo::train
