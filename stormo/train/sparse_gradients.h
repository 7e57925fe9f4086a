#pragma once

#include <vector>

#include <torch/nn/module.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer.h>

namespace stormo::train {

/// Tables of which a step touches few rows, so that their gradients are sparse tensors: the weights
/// of torch::nn::Embedding and EmbeddingBag built with sparse(true), as far as they are trained.
std::vector<NamedParameter> sparse_tables(const torch::nn::Module& module);

/// Averages the gradients of sparse_tables(). Rows and their numbers travel, or the whole table
/// where that is less (comm::all_reduce_rows).
class SparseGradients {
 public:
  SparseGradients(comm::Communicator& world, const torch::nn::Module& module)
      : world_(world), parameters_(sparse_tables(module)) {}

  const std::vector<NamedParameter>& parameters() const { return parameters_; }
  /// Those of `all` that are not among parameters().
  std::vector<NamedParameter> others(const std::vector<NamedParameter>& all) const;
  /// Replaces each gradient g by sum(weight_r * g_r) / sum(weight_r), a coalesced sparse tensor on
  /// every rank; undefined gradients have no rows.
  Status reduce(double weight);

 private:
  Status reduce(const NamedParameter& parameter, double share);

  comm::Communicator& world_;
  std::vector<NamedParameter> parameters_;
};

}  // namespace stormo::train
