#pragma once

#include <cstdint>
#include <vector>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

struct VerticalOptions {
  int ranks = 2;
  int labels = 0;                          ///< the rank that has the targets
  std::vector<std::int64_t> columns = {};  ///< of each rank; empty: as even as possible
};

/// Vertical sharding, by features: each rank has some columns of every sample, and those columns of
/// the first layer's weight that they meet. The ranks add up their partial products, once for each
/// micro-batch, and compute all other layers alike. One rank has the targets: it computes the loss,
/// and sends it with the gradient of the output. So no values of columns, and no targets, are sent.
/// The axis is plan::kTensorAxis.
///
/// kInvalidArgument for a model whose first segment alone is not split by its inputs (Mlp with
/// MlpCut::kByColumns), for counts that do not fit it, and for `labels` that is no rank. Q. Yang et
/// al., "Federated machine learning: concept and applications", 2019, call the setting vertical
/// federated learning. Here nothing is encrypted.
Pass vertical(const VerticalOptions& options);

}  // namespace stormo::parallel
