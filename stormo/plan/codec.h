#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include <stormo/base/dtype.h>

namespace stormo::plan {

/// The form in which gradients travel between ranks that reduce them. What is true of a codec
/// stands in its row, see CodecRow.
enum class Codec : std::uint8_t {
  kNone,      ///< each gradient in its own type
  kBFloat16,  ///< half the bytes of float32, its range, 8 bits of its precision
  kFloat16,   ///< half the bytes, 11 bits of precision, but nothing above 65504
  kInt8,      ///< 8 bits: whole numbers of a scale for each 256 neighbours
};

struct CodecRow {
  Codec codec;
  std::string_view word;  ///< in the text form of plans, and in recipes
  /// The type to which gradients are rounded, and in which ranks add them up; none: their own.
  std::optional<DType> type = {};
  /// Of a codec of blocks: elements of one, float32 numbers, and the bytes that they become. 0:
  /// elements travel one by one.
  int block = 0;
  int block_bytes = 0;
  bool in_blocks() const { return block > 0; }
};

/// One for each codec, in the order of Codec.
std::span<const CodecRow> codec_rows();
const CodecRow& row_of(Codec codec);
std::string_view to_string(Codec codec);
/// The words of all rows.
std::vector<std::string_view> codec_names();

/// How `elements` are cut over `ranks` and encoded in blocks.
struct EncodedParts {
  std::int64_t elements = 0;  ///< of a part; the last ones may have fewer
  std::int64_t padded = 0;    ///< in whole blocks
  std::int64_t bytes = 0;     ///< of the code of a part
};
EncodedParts encoded_parts(const CodecRow& row, std::int64_t elements, int ranks);

/// The type of the elements that travel, of gradients of type `own`.
inline DType type_sent(Codec codec, DType own) { return row_of(codec).type.value_or(own); }

}  // namespace stormo::plan
