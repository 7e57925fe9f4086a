#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/dtype.h>

namespace stormo {

/// The form in which gradients travel between ranks that reduce them. What is true of a codec
/// stands in its row, see CodecRow.
struct Codec {
  enum Kind : std::uint8_t {
    kNone,       ///< each gradient in its own type
    kBFloat16,   ///< half the bytes of float32, its range, 8 bits of its precision
    kFloat16,    ///< half the bytes, 11 bits of precision, but nothing above 65504
    kInt8,       ///< 8 bits: whole numbers of a scale for each 256 neighbours
    kInt4,       ///< 4 bits, as kInt8
    kSign,       ///< 1 bit: the sign; the magnitude is the mean of 512 neighbours
    kTernGrad,   ///< 2 bits: -1, 0 or 1 of a scale for each 256 neighbours, drawn at random
    kQsgd,       ///< 4 bits, as kInt4, but drawn at random
    kTopK,       ///< the largest numbers, and where they are
    kThreshold,  ///< as kTopK, but the least of them is estimated from a sample
    kRandomK,    ///< numbers at places that all ranks draw alike
    kPowerSgd,   ///< matrices as products of two narrow ones
  };
  Kind kind = kNone;
  /// Of a row with has_density: the share of the numbers that travels, above 0 and at most 1.
  double density = 0.01;
  /// Of a row with has_matrix_rank: the rank of the matrices that travel, from 1 on.
  int matrix_rank = 4;
  constexpr Codec() = default;
  constexpr Codec(Kind k) : kind(k) {}  // NOLINT: a kind is a codec
  constexpr Codec(Kind k, double share) : kind(k), density(share) {}
  static constexpr Codec powersgd(int matrix_rank) {
    Codec out(kPowerSgd);
    out.matrix_rank = matrix_rank;
    return out;
  }
  friend bool operator==(const Codec&, const Codec&) = default;
};

/// How codes become sums.
enum class CodecSums : std::uint8_t {
  kLinear,      ///< codes are numbers of one type, and are added up as they travel
  kPerMessage,  ///< a code is one message, which its receiver decodes and adds to what it has
  kFactors,     ///< two sums, of the left and of the right factors of matrices: see LowRank
};

/// Of a message, what its decoder must know as its encoder did. Another run of the same step has
/// the same, so that its bits are the same.
struct CodeKey {
  std::uint64_t seed = 0;  ///< of what is drawn at random
  double density = Codec().density;
};

struct CodecRow {
  Codec::Kind codec = Codec::kNone;
  std::string_view word;  ///< in the text form of plans, and in recipes
  CodecSums sums = CodecSums::kLinear;
  /// The type to which gradients are rounded, and in which ranks add them up, as they lie; none:
  /// their own, or they are encoded.
  std::optional<DType> type = {};
  /// What a code lost is added to what is encoded next. A codec that encodes without it is
  /// unbiased: the mean of what can be drawn is the value.
  bool error_feedback = false;
  bool has_density = false;      ///< see Codec::density
  bool has_matrix_rank = false;  ///< see Codec::matrix_rank

  // Of a codec that encodes float32 numbers, but not by factors. A message has so many of
  // them, and its code is whole words of 4 bytes. A message with a number that is not finite is
  // decoded to one with NaN, and nothing of what is not finite is kept. The bits are the same on
  // all processors. Any thread.

  /// Of the code of a message of so many numbers.
  std::int64_t (*bytes)(std::int64_t numbers, double density) = nullptr;
  /// Writes the code of `values`, and leaves in them what it lost: the value less the decoded one.
  void (*encode)(std::span<float> values, std::byte* code, const CodeKey& key) = nullptr;
  /// Adds the decoded numbers to `values`, which are as many as those that were encoded.
  void (*decode_add)(const std::byte* code, std::span<float> values, const CodeKey& key) = nullptr;

  /// Gradients do not travel one by one: see comm::EncodedSum.
  bool encodes() const { return encode != nullptr || has_factors(); }
  bool has_factors() const { return sums == CodecSums::kFactors; }
};

/// One for each codec, in the order of Codec::Kind.
std::span<const CodecRow> codec_rows();
const CodecRow& row_of(Codec codec);
std::string_view to_string(Codec::Kind codec);
/// As the text form of plans has it: "int8", "top_k:0.01", "powersgd:4".
std::string to_string(Codec codec);
/// The words of all rows.
std::vector<std::string_view> codec_names();

/// How numbers that are encoded are cut over ranks: rank r adds up part r.
struct EncodedParts {
  std::int64_t numbers = 0;  ///< of a part; the last ones may have fewer
  std::int64_t bytes = 0;    ///< of the code of a part
};
EncodedParts encoded_parts(const CodecRow& row, double density, std::int64_t numbers, int ranks);

/// The type of gradients of type `own` where they are added up.
DType type_summed(Codec codec, DType own);

}  // namespace stormo
