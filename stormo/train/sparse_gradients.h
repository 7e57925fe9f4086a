#pragma once

#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Tables of which a step touches few rows, so that their gradients are sparse tensors: the weights
/// of torch::nn::Embedding and EmbeddingBag built with sparse(true), as far as they are trained.
std::vector<torch::Tensor> sparse_tables(const torch::nn::Module& module);

/// Replaces the gradient g_r of `table` on each rank r by sum(share_r * g_r), a coalesced sparse
/// tensor; an undefined one has no rows. Rows and their numbers travel, or the whole table where
/// that is less (comm::all_reduce_rows).
Status reduce_rows(comm::Communicator& ranks, const torch::Tensor& table, double share);

}  // namespace stormo::train
