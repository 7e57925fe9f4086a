#pragma once

#include <vector>

#include <stormo/codec/adasum.h>
#include <stormo/comm/codec/encoded_sum.h>

namespace stormo::comm {

/// Gradients of ranks become one by Adasum, see codec::Adasum; in place of a sum.
///
/// Idea: rank r combines part r. Every rank sends each part to its owner (all_to_all). For each
/// level of the tree ranks add up the scalar products of their parts (all_reduce of a few float64),
/// and each combines its part. At last all get all parts (all_gather), and so the same bits.
///
/// Keeps nothing from one to the next.
///
/// Cost for n numbers on N ranks: a rank sends 2 (N-1)/N of n numbers, and by ceil(log2 N)
/// all_reduces 24 bytes for each pair of a level and each gradient; 8 n bytes of memory.
class AdaptiveSum final : public EncodedSum {
 public:
  /// Of the gradients in the order in which their numbers lie. `world` is borrowed.
  AdaptiveSum(Communicator& world, const std::vector<codec::MatrixShape>& gradients);

  std::vector<Kept> kept() override { return {}; }

 private:
  Status sum(const Request& request, const Perform& perform) override;
  bool scatters() const override { return false; }

  codec::Adasum form_;
  std::vector<double> products_;
  Bytes whole_, terms_;  // of this rank all parts, with zeros behind them; of all ranks its part
};

}  // namespace stormo::comm
