#pragma once

#include <functional>
#include <optional>
#include <string>

#include <torch/types.h>

#include <stormo/comm/communicator.h>

namespace stormo::tensor {

/// Parameters, buffers and options of a torch::nn::BatchNorm1d to 3d; they share its memory.
struct NormValues {
  torch::Tensor weight, bias;  ///< undefined: none
  /// Undefined: not tracked.
  torch::Tensor running_mean, running_var, num_batches_tracked;
  double eps = 1e-5;
  std::optional<double> momentum = {};  ///< empty: running means of all batches
};
template <class BatchNorm>
NormValues values_of(const BatchNorm& norm) {
  NormValues out{.weight = norm.weight,
                 .bias = norm.bias,
                 .running_mean = {},
                 .running_var = {},
                 .num_batches_tracked = {},
                 .eps = norm.options.eps(),
                 .momentum = {}};
  if (const auto momentum = norm.options.momentum()) out.momentum = *momentum;
  if (!norm.options.track_running_stats()) return out;
  out.running_mean = norm.running_mean;
  out.running_var = norm.running_var;
  out.num_batches_tracked = norm.num_batches_tracked;
  return out;
}

/// The ranks over whose samples, and places, batch normalisation computes.
struct NormRanks {
  comm::Communicator* ranks = nullptr;  ///< borrowed, also by the graph; null: this one alone
  std::string who;                      ///< for messages
  /// What this rank's loss counts for; asked in backward.
  std::function<double()> weight = [] { return 1.0; };
};

/// Batch normalisation over all ranks together, in training (H. Zhang et al., "Context Encoding for
/// Semantic Segmentation", CVPR 2018): what torch::nn::BatchNorm1d to 3d compute of the union of
/// the ranks' `input`, [N, C, ...] float, of which a rank may have none. Computes in float32, or
/// float64, and returns the input's type. Updates the running values, which stay equal on all
/// ranks. A collective, also in backward. Gradients are those of the sum of all ranks' losses, each
/// times its rank's weight, and divided by this rank's own. Gradients of gradients are refused.
/// Throws Error; on every rank when there are less than two values per channel on all together.
///
/// Each rank's count, mean and sum of squared differences are gathered and combined in float64, in
/// the order of ranks (T. Chan et al., 1983). Cost on N ranks: an all_gather of 8 (2C + 1) bytes
/// from each in forward, an all_reduce of 16 C bytes in backward.
torch::Tensor batch_norm(const torch::Tensor& input, const NormValues& values,
                         const NormRanks& over);

}  // namespace stormo::tensor
