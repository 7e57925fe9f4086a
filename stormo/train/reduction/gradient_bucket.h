#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/codec.h>
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
/// With a codec of another type than theirs all gradients are packed: each is rounded once when it
/// is copied into the flat buffer, and at every addition between ranks. With a codec of blocks they
/// are packed, too, and their sum travels as comm::EncodedSum does, behind the flags.
class GradientBucket {
 public:
  /// Tensors of at least this size are allocated in the Arena.
  static constexpr std::int64_t kInPlaceBytes = tensor::kArenaThresholdBytes;

  /// `parameters` must not be empty and have one element type; `world` is borrowed. `codec` and
  /// `algorithm` are those of the plan's action.
  GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                 plan::Codec codec, std::string algorithm);
  GradientBucket(const GradientBucket&) = delete;

  /// A collective; blocks. Replaces each gradient g by sum(weight_r * g_r) / sum(weight_r). Runs on
  /// the caller's thread. `total_weight`: sum(weight_r) if all ranks know it, else 0; a codec of
  /// blocks needs it.
  Status reduce(double weight, double total_weight);
  /// The same asynchronously. From start() to finish() the gradients must not be read or written.
  void start(double weight, double total_weight);
  Status finish();
  /// Of a codec of blocks; else null.
  comm::EncodedSum* encoded() { return encoded_.get(); }
  /// Of its first parameter.
  const std::string& name() const { return parameters_.front().name; }
  /// Waits for the reduction that start() began, without copying results back.
  void abandon();

 private:
  /// Flags and small values into the flat buffer; the large ones as they will be reduced. With a
  /// codec of blocks this rank's term of the average: its `share` of the weights times the
  /// gradient.
  void gather(double share);
  /// The averages back into the gradients; drops what no rank has.
  void scatter();
  torch::Tensor flags() const;
  torch::Tensor values() const;
  /// What travels, in order.
  std::vector<comm::Request> requests(double weight, double total_weight);
  Status wait();

  comm::Communicator& world_;
  std::vector<NamedParameter> parameters_;  // large ones first
  std::string algorithm_;
  std::size_t num_large_ = 0;
  torch::Tensor flat_;                 // a flag per parameter, then the values of the small ones
  std::vector<torch::Tensor> views_;   // of the small ones, shaped
  std::vector<torch::Tensor> large_;   // the gradients, or copies of those that must not be written
  std::vector<comm::Buffer> buffers_;  // what travels
  // by parameter: the share of the weights that has a gradient
  std::vector<double> shares_;
  std::unique_ptr<comm::EncodedSum> encoded_;  // of a codec of blocks; else null
  torch::Tensor values_;                       // then: what it sums
  std::vector<comm::Work> work_;
};

}  // namespace stormo::train
