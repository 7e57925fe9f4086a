#pragma once

#include <cstdint>
#include <vector>

#include <torch/types.h>

#include <stormo/comm/communicator.h>
#include <stormo/plan/project.h>
#include <stormo/plan/step_plan.h>

// Attention over sequences of which each rank has a part (context parallelism).
namespace stormo::tensor {

/// The ranks that have parts of the positions of each sample: a group over plan::kContextAxis. For
/// P ranks the positions are 2P chunks of equal length. Rank i has the chunks i and 2P-1-i, in this
/// order. So all ranks compute equally much where a position attends to those before it only.
class ContextGroup {
 public:
  /// `ranks` is borrowed.
  ContextGroup(comm::Communicator& ranks, plan::AttentionForm form)
      : ranks_(&ranks), part_{ranks.rank(), ranks.size()}, form_(form) {}
  /// One rank of `parts` by itself, which gets its own keys and values for those of others. To
  /// measure what such a rank computes and keeps.
  static ContextGroup alone(int parts, plan::AttentionForm form) {
    return ContextGroup(parts, form);
  }

  const plan::Part& part() const { return part_; }
  plan::AttentionForm form() const { return form_; }

  /// This rank's positions of a tensor that has all of them along dimension `dim`; a copy. Throws
  /// Error (kInvalidArgument) unless they are 2P equal chunks.
  torch::Tensor take(const torch::Tensor& whole, std::int64_t dim) const;
  /// The numbers of this rank's positions, of which it has `count`: int64, [count].
  torch::Tensor positions(std::int64_t count) const;

  /// Sends a contiguous tensor to the next rank of the ring, and receives one of the same size and
  /// type from the previous one, meanwhile; `tag` tells several of them apart.
  class Passing {
   public:
    Passing(const ContextGroup& ranks, const torch::Tensor& send, const torch::Tensor& receive,
            std::uint32_t tag);
    /// Blocks until both are done. Throws Error.
    void wait();

   private:
    std::vector<comm::Work> works_;
  };
  /// A collective: entry i of dimension 0 of a contiguous tensor goes to rank i; entry i of the
  /// result comes from it. Blocks. Throws Error.
  torch::Tensor all_to_all(const torch::Tensor& x) const;

 private:
  ContextGroup(int parts, plan::AttentionForm form) : part_{parts - 1, parts}, form_(form) {}

  comm::Communicator* ranks_ = nullptr;  // null: alone
  plan::Part part_;
  plan::AttentionForm form_;
};

/// Scaled dot-product attention: softmax(q k^T / sqrt(D)) v. q, k, v are [B, heads, t, D], float32,
/// float64 or 16-bit, the last dimension contiguous; so is the result. With null, t are all
/// positions. Else they are those of this rank (ContextGroup::positions()), and the result is what
/// they get of attention over the positions of all ranks; a collective, forward and in backward.
/// `causal`: a position attends to itself and those before it. Throws Error.
///
/// AttentionForm::kRing: keys and values pass all ranks in turn, and the results for each rank's
/// keys are merged by the logarithms of their sums. A rank has the keys and values of two ranks at
/// a time. Sends (P-1)/P of all keys and values in forward, and in backward also as many gradients
/// of them. H. Liu et al., "Ring attention with blockwise transformers for
/// near-infinite context", 2023; W. Brandon et al., "Striped attention", 2023, for balance; chunks
/// as in Megatron-LM and torch.distributed.tensor.experimental.
///
/// AttentionForm::kHeads: each rank gets all positions of its share of the heads, and gives back
/// the results. The number of heads must be a multiple of P. Sends (P-1)/P of q, k, v and the
/// result, of this rank's positions; the same in backward. S. Jacobs et al., "DeepSpeed Ulysses",
/// 2023.
torch::Tensor attention(const torch::Tensor& q, const torch::Tensor& k, const torch::Tensor& v,
                        bool causal, const ContextGroup* ranks);

}  // namespace stormo::tensor
