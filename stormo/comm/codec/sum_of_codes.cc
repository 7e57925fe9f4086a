#include <stormo/comm/codec/sum_of_codes.h>

#include <algorithm>
#include <cmath>

#include <stormo/base/check.h>
#include <stormo/base/rng.h>

namespace stormo::comm {

SumOfCodes::SumOfCodes(Communicator& world, const CodecRow& row, std::int64_t count, double density,
                       std::optional<codec::MomentumCorrection> correction)
    : EncodedSum(world, row.word, count),
      row_(row),
      density_(density),
      correction_(correction),
      parts_(encoded_parts(row, density, count, world.size())),
      kept_(static_cast<std::size_t>(parts_.numbers *
                                     (world.size() + 1 + (correction ? world.size() : 0)))),
      late_(static_cast<std::size_t>(correction ? parts_.numbers : 0)),
      sent_(allocate(parts_.bytes * world.size())),  // a part with fewer numbers ends in zeros
      received_(allocate(parts_.bytes * world.size())) {
  STORMO_CHECK(!correction || (row.error_feedback && row.has_density),
               "momentum is for codecs that send few numbers");
}

std::vector<EncodedSum::Kept> SumOfCodes::kept() {
  if (!row_.error_feedback) return {};
  return {{.name = "", .numbers = kept_, .rows = ranks() + 1 + (correction_ ? ranks() : 0)}};
}

std::span<float> SumOfCodes::residual() {
  return std::span(kept_).first(static_cast<std::size_t>(parts_.numbers * (ranks() + 1)));
}

std::span<float> SumOfCodes::velocity() { return std::span(kept_).subspan(residual().size()); }

std::span<float> SumOfCodes::term(int r) {
  return residual().subspan(static_cast<std::size_t>(parts_.numbers * r),
                            static_cast<std::size_t>(numbers_of(r)));
}

std::span<float> SumOfCodes::owned() {
  return residual().subspan(static_cast<std::size_t>(parts_.numbers * ranks()),
                            static_cast<std::size_t>(numbers_of(world().rank())));
}

std::span<float> SumOfCodes::momentum(int r) {
  return velocity().subspan(static_cast<std::size_t>(parts_.numbers * r),
                            static_cast<std::size_t>(numbers_of(r)));
}

std::int64_t SumOfCodes::numbers_of(int part) const {
  return std::clamp<std::int64_t>(count() - parts_.numbers * part, 0, parts_.numbers);
}

CodeKey SumOfCodes::key(int part, int sender) const {
  const bool linear = row_.sums == CodecSums::kLinear;
  const auto [low, high, x, y] = philox4x32(
      {static_cast<std::uint32_t>(sums()), static_cast<std::uint32_t>(sums() >> 32),
       static_cast<std::uint32_t>(part), linear ? 0 : static_cast<std::uint32_t>(sender)},
      {static_cast<std::uint32_t>(count()), static_cast<std::uint32_t>(count() >> 32)});
  return {.seed = low | std::uint64_t{high} << 32, .density = density_};
}

// Leaves in `values` what comes with the next sum.
void SumOfCodes::encode(std::span<float> values, std::byte* code, const CodeKey& key) const {
  row_.encode(values, code, key);
  if (!row_.error_feedback) std::ranges::fill(values, 0.0f);
}

void SumOfCodes::encode_terms(const float* values) {
  const float factor = clip_factor({values, static_cast<std::size_t>(count())});
  for (int r = 0; r < ranks(); ++r) {
    const std::span<float> v = term(r);
    if (correction_) {
      codec::add_momentum(*correction_, {values, v.size()}, factor, momentum(r), v, late_);
      values += v.size();
    } else {
      for (float& one : v) one += *values++;
    }
    encode(v, code(r), key(r, world().rank()));
    if (correction_) codec::mask_momentum(v, late_, momentum(r));
  }
}

float SumOfCodes::clip_factor(std::span<const float> values) const {
  if (!correction_ || correction_->clip_norm == 0) return 1;
  double squares = 0;
  for (const float v : values) squares += double{v} * double{v};
  return static_cast<float>(codec::clip_factor(*correction_, std::sqrt(squares), ranks()));
}

void SumOfCodes::decode_all(float* values) {
  for (int r = 0; r < ranks(); ++r) {
    const std::span part(values, static_cast<std::size_t>(numbers_of(r)));
    std::ranges::fill(part, 0.0f);
    row_.decode_add(code(r), part, key(r, ranks()));
    values += part.size();
  }
}

Status SumOfCodes::sum(const Request& request, const Perform& perform) {
  encode_terms(static_cast<const float*>(request.in.front().data));
  return row_.sums == CodecSums::kLinear ? sum_codes(request, perform)
                                         : send_to_owners(request, perform);
}

Status SumOfCodes::sum_codes(const Request& request, const Perform& perform) {
  auto* const out = static_cast<float*>(request.out.front().data);
  const bool scatters = request.kind == OperationKind::kReduceScatter;
  const std::int64_t each = parts_.bytes / static_cast<std::int64_t>(sizeof(float));
  const Buffer codes{sent_.get(), each * ranks(), DType::kFloat32};
  const Buffer own{received_.get(), each, DType::kFloat32};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = request.kind, .in = {&codes, 1}, .out = {scatters ? &own : &codes, 1}}));
  if (!scatters) {
    decode_all(out);
    return {};
  }
  const std::span part(out, static_cast<std::size_t>(request.out.front().count));
  std::ranges::fill(part, 0.0f);
  row_.decode_add(received_.get(), part, key(world().rank(), world().rank()));
  return {};
}

Status SumOfCodes::send_to_owners(const Request& request, const Perform& perform) {
  const Buffer terms{sent_.get(), parts_.bytes * ranks(), DType::kUInt8};
  const Buffer own_terms{received_.get(), parts_.bytes * ranks(), DType::kUInt8};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllToAll, .in = {&terms, 1}, .out = {&own_terms, 1}}));
  for (int r = 0; r < ranks(); ++r) {
    row_.decode_add(received_.get() + parts_.bytes * r, owned(), key(world().rank(), r));
  }
  auto* const out = static_cast<float*>(request.out.front().data);
  if (request.kind == OperationKind::kReduceScatter) {
    std::ranges::copy(owned(), out);
    std::ranges::fill(owned(), 0.0f);
    return {};
  }
  encode(owned(), received_.get(), key(world().rank(), ranks()));
  const Buffer own{received_.get(), parts_.bytes, DType::kUInt8};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllGather, .in = {&own, 1}, .out = {&terms, 1}}));
  decode_all(out);
  return {};
}

}  // namespace stormo::comm
