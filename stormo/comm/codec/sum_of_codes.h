#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include <stormo/codec/codec.h>
#include <stormo/codec/momentum_correction.h>
#include <stormo/comm/codec/encoded_sum.h>

namespace stormo::comm {

/// Sums of numbers whose codec has an encoder (CodecRow::encode).
///
/// Idea: rank r adds up part r. Every rank encodes its numbers, each part as a message. Codes that
/// are linear are added up by one collective, and decoded once. Else each part goes to its owner,
/// who decodes the terms, adds them up in the order of ranks, and encodes the sum for all. The
/// owner, too, uses the decoded sum, so that all ranks get the same bits. Each number is encoded
/// twice, whatever the number of ranks. What is lost of numbers that are not finite is forgotten.
///
/// With a MomentumCorrection a rank encodes the momentum of its numbers. Sums have none of their
/// own.
///
/// Paper: H. Tang et al., "DoubleSqueeze", ICML 2019 (both directions).
///
/// Cost for n numbers on N ranks: a rank sends 2 (N-1)/N of the code of n numbers; 4 n (1 + 1/N)
/// bytes of memory for what was lost, 4 n for a momentum, and twice the code.
class SumOfCodes final : public EncodedSum {
 public:
  /// `row`: of a codec with an encoder; `count`: numbers of a whole; `density`: of codecs that have
  /// one, and only they take a `correction`. `world` and `row` are borrowed.
  SumOfCodes(Communicator& world, const CodecRow& row, std::int64_t count,
             double density = Codec().density,
             std::optional<codec::MomentumCorrection> correction = {});

  /// The rows of residual(), and behind them as many of velocity() as there are ranks.
  std::vector<Kept> kept() override;
  /// What was lost, in ranks() + 1 rows: of this rank's numbers by the rank that adds them up, then
  /// of the sums that this rank owns.
  std::span<float> residual();
  /// The momentum of this rank's numbers, by the rank that adds them up; without a correction
  /// empty.
  std::span<float> velocity();

 private:
  Status sum(const Request& request, const Perform& perform) override;
  bool scatters() const override { return true; }

  Status sum_codes(const Request& request, const Perform& perform);
  Status send_to_owners(const Request& request, const Perform& perform);
  /// Part `r` of this rank's numbers, with what was lost before.
  std::span<float> term(int r);
  std::span<float> owned();
  std::span<float> momentum(int r);
  std::int64_t numbers_of(int part) const;
  void encode_terms(const float* values);
  /// By which this rank's numbers are scaled down.
  float clip_factor(std::span<const float> values) const;
  void encode(std::span<float> values, std::byte* code, const CodeKey& key) const;
  /// Of the code of a part: the term of rank `sender`, or where that is ranks() its sum. Linear
  /// codes, which are added up, have one key.
  CodeKey key(int part, int sender) const;
  std::byte* code(int part) { return sent_.get() + parts_.bytes * part; }
  void decode_all(float* values);

  const CodecRow& row_;
  double density_;
  std::optional<codec::MomentumCorrection> correction_;
  EncodedParts parts_;
  std::vector<float> kept_;      // a term of each part, a sum, a momentum of each part
  std::vector<std::byte> late_;  // of a part, with a momentum
  Bytes sent_, received_;        // a code for each part
};

}  // namespace stormo::comm
