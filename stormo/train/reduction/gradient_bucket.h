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

/// Gradients of one element type that are reduced together by one all_reduce.
///
/// Large gradients (kInPlaceBytes and up) are reduced in place; small ones are packed into one flat
/// buffer in the Arena. The division depends only on the parameters, so it is equal on all ranks. A
/// large gradient that cannot be reduced in place (aliased, strided, absent) is copied. The flat
/// buffer also has one flag per parameter. A gradient that no rank of positive weight has is
/// undefined on every rank afterwards, as on one device. One that only some ranks have counts as
/// zero on the others, and is defined on all ranks afterwards.
///
/// With `reduce_type` a 16-bit type all gradients are packed: each is rounded once when it is
/// copied into the flat buffer, and at every addition between ranks.
class GradientBucket {
 public:
  /// Tensors of at least this size are allocated in the Arena.
  static constexpr std::int64_t kInPlaceBytes = tensor::kArenaThresholdBytes;

  /// `parameters` must not be empty and have one element type; `world` is borrowed. `algorithm`:
  /// the builder that reduces; empty: the communicator chooses. `reduce_type`: kBFloat16 or kHalf,
  /// else the parameters' own type.
  GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                 std::string algorithm, std::optional<torch::ScalarType> reduce_type = {});
  GradientBucket(const GradientBucket&) = delete;

  /// A collective; blocks. Replaces each gradient g by sum(weight_r * g_r) / sum(weight_r). Runs on
  /// the caller's thread. `total_weight`: sum(weight_r) if all ranks know it, else 0.
  Status reduce(double weight, double total_weight);
  /// The same asynchronously. From start() to finish() the gradients must not be read or written.
  void start(double weight, double total_weight);
  Status finish();
  /// Waits for the reduction that start() began, without copying results back.
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
