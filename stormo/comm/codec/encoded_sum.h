#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/codec/encoders.h>
#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// Sums of float32 numbers over the ranks of a group, which travel in a codec of blocks. It keeps
/// what the codec lost, and adds it to the next sum (error feedback), so that what sums lose does
/// not grow. One object serves the sums of one list of numbers, one after the other.
///
/// Idea: rank r adds up part r. Every rank encodes its numbers and sends each part to its owner,
/// who decodes the terms, adds them up in the order of ranks, and encodes the sum for all. The
/// owner, too, uses the decoded sum, so that all ranks get the same bits. Each number is encoded
/// twice, whatever the number of ranks. What a block of numbers that are not finite lost is
/// forgotten.
///
/// Papers: F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014 (error feedback);
/// S. P. Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019; H. Tang et al.,
/// "DoubleSqueeze", ICML 2019 (both directions).
///
/// Cost for n numbers on N ranks: a rank sends 2 (N-1)/N of the code of n numbers; 4 n (1 + 1/N)
/// bytes of memory for what was lost, and twice the code.
class EncodedSum {
 public:
  /// `count`: numbers of a whole; `world` is borrowed, `encoder` kept.
  EncodedSum(Communicator& world, const Encoder& encoder, std::int64_t count);
  EncodedSum(const EncodedSum&) = delete;

  /// For engines: does what a request with this object in Request::encoding asks for, in operations
  /// that `perform` runs one after the other. all_reduce of one buffer, or reduce_scatter to equal
  /// parts; sums of float32. kInvalidArgument otherwise.
  using Perform = std::function<Status(const Request&)>;
  Status perform(const Request& request, const Perform& perform);

  std::int64_t count() const { return count_; }
  int ranks() const { return world_.size(); }
  /// What was lost, in ranks() + 1 rows: of this rank's numbers by the rank that adds them up, then
  /// of the sums that this rank owns.
  std::span<float> residual() { return residual_; }

 private:
  Status check(const Request& request) const;
  /// Part `r` of this rank's numbers, with what was lost before.
  std::span<float> term(int r);
  std::span<float> sum();
  std::int64_t elements_of(int part) const;
  void add_values(const float* values);
  void write_values(float* values);

  Communicator& world_;
  Encoder encoder_;
  std::int64_t count_;
  plan::EncodedParts parts_;
  std::vector<float> residual_;  // a term of each part, then a sum
  std::vector<float> decoded_;   // of one part
  using Bytes = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;
  Bytes allocate();
  Bytes sent_, received_;  // a code for each part
};

}  // namespace stormo::comm
