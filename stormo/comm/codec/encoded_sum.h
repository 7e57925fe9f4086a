#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/codec/codec.h>
#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// Sums of float32 numbers over the ranks of a group, which travel in a codec that encodes. Where
/// its row says so, the sum keeps what the codec lost, and adds it to the next sum (error
/// feedback), so that what sums lose does not grow. One object serves the sums of one list of
/// numbers, one after the other.
///
/// Idea: rank r adds up part r. Every rank encodes its numbers, each part as a message. Codes that
/// are linear are added up by one collective, and decoded once. Else each part goes to its owner,
/// who decodes the terms, adds them up in the order of ranks, and encodes the sum for all. The
/// owner, too, uses the decoded sum, so that all ranks get the same bits. Each number is encoded
/// twice, whatever the number of ranks. What is lost of numbers that are not finite is forgotten.
///
/// Papers: F. Seide et al., "1-bit stochastic gradient descent", Interspeech 2014 (error feedback);
/// S. P. Karimireddy et al., "Error feedback fixes SignSGD", ICML 2019; H. Tang et al.,
/// "DoubleSqueeze", ICML 2019 (both directions).
///
/// Cost for n numbers on N ranks: a rank sends 2 (N-1)/N of the code of n numbers; 4 n (1 + 1/N)
/// bytes of memory for what was lost, and twice the code.
class EncodedSum {
 public:
  /// `row`: of a codec that encodes; `count`: numbers of a whole; `density`: of codecs that have
  /// one. `world` and `row` are borrowed.
  EncodedSum(Communicator& world, const CodecRow& row, std::int64_t count,
             double density = Codec().density);
  EncodedSum(const EncodedSum&) = delete;

  /// For engines: does what a request with this object in Request::encoding asks for, in operations
  /// that `perform` runs one after the other. all_reduce of one buffer, or reduce_scatter to equal
  /// parts; sums of float32. kInvalidArgument otherwise.
  using Perform = std::function<Status(const Request&)>;
  Status perform(const Request& request, const Perform& perform);

  std::int64_t count() const { return count_; }
  int ranks() const { return world_.size(); }
  /// How many there were. What is drawn at random depends on it, so another object goes on with it
  /// bit for bit.
  std::uint64_t sums() const { return sums_; }
  void set_sums(std::uint64_t sums) { sums_ = sums; }
  /// Whether something is kept from sum to sum.
  bool has_error_feedback() const { return row_.error_feedback; }
  /// What was lost, in ranks() + 1 rows: of this rank's numbers by the rank that adds them up, then
  /// of the sums that this rank owns.
  std::span<float> residual() { return residual_; }

 private:
  Status check(const Request& request) const;
  Status sum_codes(const Request& request, const Perform& perform);
  Status send_to_owners(const Request& request, const Perform& perform);
  /// Part `r` of this rank's numbers, with what was lost before.
  std::span<float> term(int r);
  std::span<float> sum();
  std::int64_t numbers_of(int part) const;
  void encode_terms(const float* values);
  void encode(std::span<float> values, std::byte* code, const CodeKey& key) const;
  /// Of the code of a part: the term of rank `sender`, or where that is ranks() its sum. Linear
  /// codes, which are added up, have one key.
  CodeKey key(int part, int sender) const;
  std::byte* code(int part) { return sent_.get() + parts_.bytes * part; }
  void decode_all(float* values);

  Communicator& world_;
  const CodecRow& row_;
  std::int64_t count_;
  double density_;
  EncodedParts parts_;
  std::uint64_t sums_ = 0;
  std::vector<float> residual_;  // a term of each part, then a sum
  using Bytes = std::unique_ptr<std::byte[], std::function<void(std::byte*)>>;
  Bytes allocate();
  Bytes sent_, received_;  // a code for each part
};

}  // namespace stormo::comm
