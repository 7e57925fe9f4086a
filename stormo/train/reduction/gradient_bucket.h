#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/status.h>
#include <stormo/codec/codec.h>
#include <stormo/comm/codec/encoded_sum.h>
#include <stormo/comm/communicator.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/perform/perform.h>

namespace stormo::train {

/// Gradients of one element type that are reduced together by one all_reduce.
///
/// The plan's transfer says which are reduced in place and which are packed into one flat buffer in
/// the Arena, so it is the same on all ranks. A gradient that cannot be reduced in place (aliased,
/// strided, absent) is copied. The flat buffer also has one flag per parameter. A gradient that no
/// rank of positive weight has is undefined on every rank afterwards, as on one device. One that
/// only some ranks have counts as zero on the others, and is defined on all ranks afterwards.
///
/// With a codec of another type than theirs all gradients are packed: each is rounded once when it
/// is copied into the flat buffer, and at every addition between ranks. With a codec that encodes
/// they are packed, too, and their sum travels as comm::EncodedSum does, behind the flags. So do
/// those that become one by Adasum (plan/adasum.h): as they are, without weights; a rank of weight
/// 0 has none.
///
/// On a device other than the CPU the flat buffer is there, and the flags travel by themselves: the
/// host needs them, and must not wait for the device.
class GradientBucket {
 public:
  /// `parameters`: those of `sum`, first Collective::in_place, then packed; at least one. `flags`:
  /// the collective of the flags, if they travel by themselves. `world` is borrowed. Throws
  /// Error(kBadPlan) if the parameters have other elements than the plan says.
  GradientBucket(comm::Communicator& world, std::vector<NamedParameter> parameters,
                 analysis::Collective sum, std::optional<analysis::Collective> flags);
  GradientBucket(const GradientBucket&) = delete;

  /// Copies flags and small values into the flat buffer; the large ones as they will be reduced.
  /// Returns the requests, to be made in this order, that replace each gradient g by
  /// sum(weight_r * g_r) / sum(weight_r). From here to scatter() the gradients must not be read or
  /// written. `total_weight`: sum(weight_r) if all ranks know it, else 0; a codec that encodes
  /// needs it.
  std::span<const comm::Request> gather(double weight, double total_weight);
  /// When they are complete: the averages back into the gradients; drops what no rank has.
  void scatter();
  /// Instead of scatter(): the averages are lost.
  void forget() { large_.clear(); }
  /// Of a codec that encodes; else null.
  comm::EncodedSum* encoded() { return row_of(sum_.codec).encodes() ? encoded_.get() : nullptr; }
  /// Of its first parameter.
  const std::string& name() const { return parameters_.front().name; }

 private:
  torch::Tensor flags() const;
  /// Of this rank, in what comes out.
  double share(double weight, double total_weight) const;

  std::vector<NamedParameter> parameters_;  // those in place first
  analysis::Collective sum_;
  std::optional<analysis::Collective> flags_;  // if they do not travel in flat_
  std::size_t num_large_;                      // in place
  torch::Tensor flat_;  // flags, unless they travel apart, then the values of the packed ones
  std::vector<torch::Tensor> views_;  // of the packed ones, shaped
  std::vector<torch::Tensor> large_;  // the gradients, or copies of those that must not be written
  // by parameter: the share of the weights that has a gradient
  std::vector<double> shares_;
  comm::Buffer all_shares_;
  std::vector<comm::Buffer> buffers_;          // of the sum: of the large ones, and of flat_
  std::unique_ptr<comm::EncodedSum> encoded_;  // of a codec that encodes, or Adasum; else null
  std::vector<comm::Request> requests_;        // of the flags, if they travel apart, and the sum
};

}  // namespace stormo::train
