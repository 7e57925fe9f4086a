#include <stormo/codec/codec.h>

#include <array>

#include <stormo/base/text.h>
#include <stormo/codec/kernels.h>

namespace stormo {
namespace {

// A new codec comes last: recipes have them in this order.
constexpr std::array kCodecRows = {
    CodecRow{.codec = Codec::kNone, .word = "none"},
    CodecRow{.codec = Codec::kBFloat16, .word = "bfloat16", .type = DType::kBFloat16},
    CodecRow{.codec = Codec::kFloat16, .word = "float16", .type = DType::kFloat16},
    CodecRow{.codec = Codec::kInt8,
             .word = "int8",
             .sums = CodecSums::kPerMessage,
             .error_feedback = true,
             .bytes = codec::whole_numbers::bytes<8>,
             .encode = codec::whole_numbers::encode_nearest8,
             .decode_add = codec::whole_numbers::decode_add8},
    CodecRow{.codec = Codec::kInt4,
             .word = "int4",
             .sums = CodecSums::kPerMessage,
             .error_feedback = true,
             .bytes = codec::whole_numbers::bytes<4>,
             .encode = codec::whole_numbers::encode_nearest4,
             .decode_add = codec::whole_numbers::decode_add4},
    CodecRow{.codec = Codec::kSign,
             .word = "sign",
             .sums = CodecSums::kPerMessage,
             .error_feedback = true,
             .bytes = codec::sign::bytes,
             .encode = codec::sign::encode,
             .decode_add = codec::sign::decode_add},
    CodecRow{.codec = Codec::kTernGrad,
             .word = "terngrad",
             .sums = CodecSums::kPerMessage,
             .bytes = codec::whole_numbers::bytes<2>,
             .encode = codec::whole_numbers::encode_drawn2,
             .decode_add = codec::whole_numbers::decode_add2},
    CodecRow{.codec = Codec::kQsgd,
             .word = "qsgd",
             .sums = CodecSums::kPerMessage,
             .bytes = codec::whole_numbers::bytes<4>,
             .encode = codec::whole_numbers::encode_drawn4,
             .decode_add = codec::whole_numbers::decode_add4},
    CodecRow{.codec = Codec::kTopK,
             .word = "top_k",
             .sums = CodecSums::kPerMessage,
             .error_feedback = true,
             .has_density = true,
             .bytes = codec::top_k::bytes,
             .encode = codec::top_k::encode,
             .decode_add = codec::top_k::decode_add},
    CodecRow{.codec = Codec::kThreshold,
             .word = "threshold",
             .sums = CodecSums::kPerMessage,
             .error_feedback = true,
             .has_density = true,
             .bytes = codec::threshold::bytes,
             .encode = codec::threshold::encode,
             .decode_add = codec::threshold::decode_add},
    CodecRow{.codec = Codec::kRandomK,
             .word = "random_k",
             .sums = CodecSums::kLinear,
             .error_feedback = true,
             .has_density = true,
             .bytes = codec::random_k::bytes,
             .encode = codec::random_k::encode,
             .decode_add = codec::random_k::decode_add},
    CodecRow{.codec = Codec::kPowerSgd,
             .word = "powersgd",
             .sums = CodecSums::kFactors,
             .error_feedback = true,
             .has_matrix_rank = true},
};

constexpr bool codecs_in_order() {
  for (std::size_t i = 0; i < kCodecRows.size(); ++i) {
    if (kCodecRows[i].codec != static_cast<Codec::Kind>(i) || kCodecRows[i].word.empty())
      return false;
  }
  return true;
}
static_assert(codecs_in_order());

}  // namespace

std::span<const CodecRow> codec_rows() { return kCodecRows; }

const CodecRow& row_of(Codec codec) { return kCodecRows[codec.kind]; }

std::string_view to_string(Codec::Kind codec) { return row_of(codec).word; }

std::string to_string(Codec codec) {
  std::string out(row_of(codec).word);
  if (row_of(codec).has_matrix_rank) return out + ":" + std::to_string(codec.matrix_rank);
  if (!row_of(codec).has_density) return out;
  return out + ":" + shortest(codec.density);
}

std::vector<std::string_view> codec_names() {
  std::vector<std::string_view> out;
  for (const CodecRow& row : kCodecRows) out.push_back(row.word);
  return out;
}

EncodedParts encoded_parts(const CodecRow& row, double density, std::int64_t numbers, int ranks) {
  const std::int64_t each = (numbers + ranks - 1) / ranks;
  return {.numbers = each, .bytes = row.bytes(each, density)};
}

DType type_summed(Codec codec, DType own) {
  const CodecRow& row = row_of(codec);
  return row.encodes() ? DType::kFloat32 : row.type.value_or(own);
}

}  // namespace stormo
