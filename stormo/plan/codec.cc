#include <stormo/plan/codec.h>

#include <array>
#include <cstddef>

namespace stormo::plan {
namespace {

constexpr std::array kCodecRows = {
    CodecRow{.codec = Codec::kNone, .word = "none"},
    CodecRow{.codec = Codec::kBFloat16, .word = "bfloat16", .type = DType::kBFloat16},
    CodecRow{.codec = Codec::kFloat16, .word = "float16", .type = DType::kFloat16},
    CodecRow{.codec = Codec::kInt8, .word = "int8", .block = 256, .block_bytes = 4 + 256},
};

constexpr bool codecs_in_order() {
  for (std::size_t i = 0; i < kCodecRows.size(); ++i) {
    if (kCodecRows[i].codec != static_cast<Codec>(i) || kCodecRows[i].word.empty()) return false;
  }
  return true;
}
static_assert(codecs_in_order());

}  // namespace

std::span<const CodecRow> codec_rows() { return kCodecRows; }

const CodecRow& row_of(Codec codec) { return kCodecRows[static_cast<std::size_t>(codec)]; }

std::string_view to_string(Codec codec) { return row_of(codec).word; }

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> out;
  for (const CodecRow& row : kCodecRows) out.push_back(row.word);
  return out;
}

EncodedParts encoded_parts(const CodecRow& row, std::int64_t elements, int ranks) {
  const std::int64_t each = (elements + ranks - 1) / ranks;
  const std::int64_t blocks = (each + row.block - 1) / row.block;
  return {.elements = each, .padded = blocks * row.block, .bytes = blocks * row.block_bytes};
}

}  // namespace stormo::plan
