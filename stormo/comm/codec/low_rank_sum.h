#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/codec/low_rank.h>
#include <stormo/comm/codec/encoded_sum.h>

namespace stormo::comm {

/// Sums of gradients that travel as factors of low rank (PowerSGD), see codec::LowRank. A sum is
/// two all_reduces, whatever the number of gradients: of the left factors with what does not travel
/// as factors, then of the right ones. Each rank keeps what its own factors lost of its matrices.
///
/// A matrix of which a term is not finite becomes NaN on all ranks, and what was lost of it before
/// is kept.
///
/// Cost for n numbers: a rank sends as two all_reduces of the messages do, whatever the ranks are;
/// memory of 4 n bytes for what was lost, of a left message and of three right ones.
class LowRankSum final : public EncodedSum {
 public:
  /// Of the gradients in the order in which their numbers lie. `world` is borrowed.
  LowRankSum(Communicator& world, const std::vector<codec::MatrixShape>& gradients,
             int matrix_rank);

  /// What was lost of each number, and the right factors of the last sum.
  std::vector<Kept> kept() override;

 private:
  Status sum(const Request& request, const Perform& perform) override;
  bool scatters() const override { return false; }

  codec::LowRank form_;
  std::vector<float> lost_, right_, own_right_;
  Bytes left_message_, right_message_;
};

}  // namespace stormo::comm
