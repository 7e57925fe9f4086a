#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/tensor/allocator.h>
#include <stormo/train/optimizer/optimizer.h>

namespace stormo::train {

/// Gradients of one element type that travel together, by one fused all_reduce.
///
/// Large gradients (kInPlaceBytes and up) are reduced where autograd left them; small ones travel
/// packed in one flat buffer in the Arena. Which is which depends on the parameters alone, so all
/// ranks agree; a large gradient that cannot be reduced in place (aliased, strided, absent) goes
/// through a copy. Along with the small ones travels one flag per parameter: a gradient that no
/// rank of positive weight has is undefined on every rank afterwards, as it would be on one device;
/// one that only some ranks have counts as zero on the others, and is defined on all afterwards.
///
/// In 16 bits all of them travel packed: each gradient is rounded once on its way into the flat
/// buffer, and at every addition between ranks.
class GradientBucket {
 public:
  /// What libtorch puts into the Arena.
  static constexpr std::int64_t kInPlaceBytes = tensor::kArenaThresholdBytes;

  /// `parameters` must not be empty and have one element type; `world` is borrowed. `algorithm`:
  /// the builder that reduces; empty: the communicator chooses. `travels_as`: kBFloat16 or kHalf,
  /// else the parameters' own type.
  GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                 std::string algorithm, std::optional<torch::ScalarType> travels_as = {});
  GradientBucket(const GradientBucket&) = delete;

  /// Replaces each gradient g by sum(weight_r * g_r) / sum(weight_r). Runs on the caller's thread.
  /// `total_weight`: sum(weight_r) where all ranks know it, else 0.
  Status reduce(double weight, double total_weight);
  /// The same in two steps. From start() to finish() nobody may touch the gradients.
  void start(double weight, double total_weight);
  Status finish();
  /// Waits for what start() began, and leaves the gradients as they are.
  void abandon();

 private:
  /// Flags and small values into the flat buffer; the large ones as they will be reduced.
  void gather();
  /// The averages back into the gradients; drops what no rank has.
  void scatter();
  torch::Tensor flags() const;
  comm::Request request(double weight, double total_weight) const;

  comm::Communicator& world_;
  std::vector<NamedParameter> parameters_;  // large ones first
  std::string algorithm_;
  std::size_t num_large_ = 0;
  torch::Tensor flat_;                 // a flag per parameter, then the values of the small ones
  std::vector<torch::Tensor> views_;   // of the small ones, shaped
  std::vector<torch::Tensor> large_;   // the gradients, or copies of those that must not be written
  std::vector<comm::Buffer> buffers_;  // what travels
  comm::Work work_;
};

}  // namespace stormo::train
