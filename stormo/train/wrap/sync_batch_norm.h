#pragma once

#include <memory>
#include <ostream>

#include <torch/nn/modules/batchnorm.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <stormo/comm/communicator.h>

namespace stormo::train {

/// What the SyncBatchNorm layers of a model share: a subgroup of all ranks. On the world itself
/// their exchanges would meet those of gradient buckets in the middle of backward, in an order that
/// differs between ranks when some have gradients that others do not have.
class SyncBatchNormGroup {
 public:
  /// A collective; blocks. `world` must outlive this, and so the layers. Throws Error.
  explicit SyncBatchNormGroup(comm::Communicator& world);

  /// What this rank's loss counts for: the number that DistributedDataParallel::set_weight() has
  /// been given, if it was. 1 at first. Throws Error for a negative or non-finite number.
  void set_weight(double weight);

  double weight() const { return weight_; }
  comm::Communicator& ranks() const { return *ranks_; }

 private:
  std::unique_ptr<comm::Communicator> ranks_;
  double weight_ = 1;
};

/// Batch normalisation over the samples of all ranks (H. Zhang et al., "Context Encoding for
/// Semantic Segmentation", CVPR 2018): for inputs (N, C) to (N, C, D, H, W), what
/// torch::nn::BatchNorm1d to 3d compute on the union of the batches, with their options, parameters
/// and buffers.
///
/// In training mode forward() and backward() are collectives: every rank runs the same layers in
/// the same order, also a rank without samples, with a batch of 0 rows. Running statistics stay
/// equal on all ranks. In evaluation mode it is BatchNorm, and no collective.
///
/// Gradients are those of the sum of all ranks' losses, each times its rank's weight, and divided
/// by this rank's own: DistributedDataParallel makes the average of them, and so the gradient of
/// the mean over all samples when each loss is a mean and counts for its samples. Gradients of
/// gradients are refused.
///
/// Each rank's count, mean and sum of squared differences are gathered and combined in float64, in
/// the order of ranks (T. Chan et al., 1983). Cost on N ranks: an all_gather of 8 (2C + 1) bytes
/// from each in forward, an all_reduce of 16 C bytes in backward.
class SyncBatchNormImpl
    : public torch::nn::NormImplBase<0, SyncBatchNormImpl, torch::nn::BatchNormOptions> {
 public:
  SyncBatchNormImpl(const torch::nn::BatchNormOptions& choices,
                    std::shared_ptr<SyncBatchNormGroup> group);

  /// Throws Error for other shapes, when the group fails, and on every rank when there are less
  /// than two values per channel on all ranks together.
  torch::Tensor forward(const torch::Tensor& input);
  void pretty_print(std::ostream& stream) const override;

 private:
  void _check_input_dim(const torch::Tensor& input) override;

  std::shared_ptr<SyncBatchNormGroup> group_;
};
TORCH_MODULE(SyncBatchNorm);

/// `model` with a SyncBatchNorm of the same options and values in place of each BatchNorm1d, 2d and
/// 3d; all other layers are shared with it. Make the optimizer afterwards. Throws Error for a layer
/// with a BatchNorm inside: C++ modules have members of fixed types, so only their own code can
/// choose another one.
torch::nn::Sequential convert_sync_batch_norm(const torch::nn::Sequential& model,
                                              const std::shared_ptr<SyncBatchNormGroup>& group);

}  // namespace stormo::train

namespace stormo {
using train::convert_sync_batch_norm;
using train::SyncBatchNorm;
using train::SyncBatchNormGroup;
}  // namespace stormo
