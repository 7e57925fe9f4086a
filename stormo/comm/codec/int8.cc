// Highway compiles the file once per instruction set; the best one is taken at run time.
#include <stormo/comm/codec/encoders.h>

#define HWY_DISABLED_TARGETS (HWY_SSSE3 | HWY_SSE4 | HWY_AVX3_DL)
#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "stormo/comm/codec/int8.cc"
#include <hwy/foreach_target.h>
//
#include <hwy/highway.h>

#include <stormo/base/check.h>
#include <stormo/base/instruction_sets.h>

#include <cfloat>
#include <cstdint>
#include <cstring>
#include <limits>

// A namespace for each codec: the linker sees these functions.
HWY_BEFORE_NAMESPACE();
namespace stormo::comm::int8::HWY_NAMESPACE {
namespace hn = hwy::HWY_NAMESPACE;

constexpr std::size_t kBlock = 256;
constexpr float kMost = 127;
using D = hn::CappedTag<float, 16>;  // divides a block
using Narrow = hn::Rebind<std::int8_t, D>;

/// Of a block: the largest value over kMost; NaN if one is not finite, 0 if all are too small for
/// numbers of 8 bits of them.
float scale_of(const float* values) {
  const D d;
  auto largest = hn::Zero(d), not_finite = hn::Zero(d);
  for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values + i);
    largest = hn::Max(largest, hn::Abs(v));
    not_finite = hn::Add(not_finite, hn::Sub(v, v));  // stays 0, or becomes NaN
  }
  if (hn::GetLane(hn::SumOfLanes(d, not_finite)) != 0) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  const float scale = hn::GetLane(hn::MaxOfLanes(d, largest)) / kMost;
  return scale < FLT_MIN ? 0 : scale;
}

void encode_block(float* values, std::byte* code) {
  const float scale = scale_of(values);
  auto* const numbers = reinterpret_cast<std::int8_t*>(code + sizeof(float));
  std::memcpy(code, &scale, sizeof(float));
  if (!(scale > 0)) {
    std::memset(numbers, scale == 0 ? 0 : 1, kBlock);
    if (scale != 0) std::memset(values, 0, kBlock * sizeof(float));
    return;
  }
  const D d;
  const auto by = hn::Set(d, scale), inverse = hn::Set(d, 1 / scale);
  for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto v = hn::LoadU(d, values + i);
    const auto nearest = hn::NearestInt(hn::Mul(v, inverse));
    hn::StoreU(hn::DemoteTo(Narrow(), nearest), Narrow(), numbers + i);
    hn::StoreU(hn::Sub(v, hn::Mul(hn::ConvertTo(d, nearest), by)), d, values + i);
  }
}

void decode_add_block(const std::byte* code, float* values) {
  float scale = 0;
  std::memcpy(&scale, code, sizeof(float));
  const auto* const numbers = reinterpret_cast<const std::int8_t*>(code + sizeof(float));
  const D d;
  const hn::Rebind<std::int32_t, D> wide;
  const auto by = hn::Set(d, scale);
  for (std::size_t i = 0; i < kBlock; i += hn::Lanes(d)) {
    const auto n = hn::ConvertTo(d, hn::PromoteTo(wide, hn::LoadU(Narrow(), numbers + i)));
    hn::StoreU(hn::Add(hn::LoadU(d, values + i), hn::Mul(n, by)), d, values + i);
  }
}

void encode(std::span<float> values, std::byte* code) {
  for (std::size_t i = 0; i < values.size(); i += kBlock, code += sizeof(float) + kBlock) {
    encode_block(values.data() + i, code);
  }
}

void decode_add(const std::byte* code, std::span<float> values) {
  for (std::size_t i = 0; i < values.size(); i += kBlock, code += sizeof(float) + kBlock) {
    decode_add_block(code, values.data() + i);
  }
}

}  // namespace stormo::comm::int8::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace stormo::comm {
namespace int8 {

static void encode_blocks(std::span<float> values, std::byte* code) {
  STORMO_BEST_VERSION(encode)(values, code);
}

static void decode_add_blocks(const std::byte* code, std::span<float> values) {
  STORMO_BEST_VERSION(decode_add)(code, values);
}

}  // namespace int8

Encoder int8_encoder() {
  const plan::CodecRow& row = row_of(plan::Codec::kInt8);
  STORMO_CHECK(row.block == 256 && row.block_bytes == 4 + 256, "the row has other blocks");
  return {.row = row, .encode = int8::encode_blocks, .decode_add = int8::decode_add_blocks};
}

}  // namespace stormo::comm
#endif
