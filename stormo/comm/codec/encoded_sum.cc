#include <stormo/comm/codec/encoded_sum.h>

#include <fmt/format.h>

#include <algorithm>

#include <stormo/base/rng.h>

namespace stormo::comm {

EncodedSum::EncodedSum(Communicator& world, const CodecRow& row, std::int64_t count, double density)
    : world_(world),
      row_(row),
      count_(count),
      density_(density),
      parts_(encoded_parts(row, density, count, world.size())),
      residual_(static_cast<std::size_t>(parts_.numbers * (world.size() + 1))),
      sent_(allocate()),
      received_(allocate()) {}

// Where peers read it as it lies. A part with fewer numbers leaves zeros at the end of its code.
EncodedSum::Bytes EncodedSum::allocate() {
  const auto bytes = static_cast<std::size_t>(parts_.bytes * world_.size());
  transport::Arena& arena = world_.arena();
  if (auto* block = static_cast<std::byte*>(arena.allocate(bytes)); block != nullptr) {
    std::fill_n(block, bytes, std::byte{});
    return {block, [&arena](std::byte* p) { arena.deallocate(p); }};
  }
  return {new std::byte[bytes](), [](const std::byte* p) { delete[] p; }};
}

Status EncodedSum::check(const Request& request) const {
  const bool scatters = request.kind == OperationKind::kReduceScatter;
  const auto refuse = [&](const std::string& why) {
    return invalid_argument(fmt::format("a sum in codec {}: {}", row_.word, why));
  };
  if (request.kind != OperationKind::kAllReduce && !scatters) {
    return refuse("only all_reduce and reduce_scatter");
  }
  if (request.in.size() != 1 || request.out.size() != 1 || !request.counts.empty()) {
    return refuse("one buffer, in equal parts");
  }
  const Buffer &in = request.in.front(), &out = request.out.front();
  if (in.device.kind != Device::Kind::kCpu || out.device.kind != Device::Kind::kCpu) {
    return refuse("only buffers on the CPU; stage others (tensor::HostStaging)");
  }
  if (in.dtype != DType::kFloat32 || out.dtype != DType::kFloat32 ||
      request.reduction.op != ReduceOp::kSum) {
    return refuse("only sums of float32");
  }
  if (!request.algorithm.empty())
    return refuse("it has a schedule of its own; leave out the algorithm");
  const std::int64_t wanted = scatters ? count_ / world_.size() : count_;
  if (in.count != count_ || out.count != wanted || (scatters && count_ % world_.size() != 0)) {
    return refuse(fmt::format("it was made for {} elements on {} ranks", count_, world_.size()));
  }
  return {};
}

std::span<float> EncodedSum::term(int r) {
  return std::span(residual_).subspan(static_cast<std::size_t>(parts_.numbers * r),
                                      static_cast<std::size_t>(numbers_of(r)));
}

std::span<float> EncodedSum::sum() {
  return std::span(residual_).subspan(static_cast<std::size_t>(parts_.numbers * world_.size()),
                                      static_cast<std::size_t>(numbers_of(world_.rank())));
}

std::int64_t EncodedSum::numbers_of(int part) const {
  return std::clamp<std::int64_t>(count_ - parts_.numbers * part, 0, parts_.numbers);
}

CodeKey EncodedSum::key(int part, int sender) const {
  const bool linear = row_.sums == CodecSums::kLinear;
  const auto [low, high, x, y] = philox4x32(
      {static_cast<std::uint32_t>(sums_), static_cast<std::uint32_t>(sums_ >> 32),
       static_cast<std::uint32_t>(part), linear ? 0 : static_cast<std::uint32_t>(sender)},
      {static_cast<std::uint32_t>(count_), static_cast<std::uint32_t>(count_ >> 32)});
  return {.seed = low | std::uint64_t{high} << 32, .density = density_};
}

// Leaves in `values` what comes with the next sum.
void EncodedSum::encode(std::span<float> values, std::byte* code, const CodeKey& key) const {
  row_.encode(values, code, key);
  if (!row_.error_feedback) std::ranges::fill(values, 0.0f);
}

void EncodedSum::encode_terms(const float* values) {
  for (int r = 0; r < world_.size(); ++r) {
    for (float& v : term(r)) v += *values++;
    encode(term(r), code(r), key(r, world_.rank()));
  }
}

void EncodedSum::decode_all(float* values) {
  for (int r = 0; r < world_.size(); ++r) {
    const std::span part(values, static_cast<std::size_t>(numbers_of(r)));
    std::ranges::fill(part, 0.0f);
    row_.decode_add(code(r), part, key(r, world_.size()));
    values += part.size();
  }
}

Status EncodedSum::perform(const Request& request, const Perform& perform) {
  STORMO_RETURN_IF_ERROR(check(request));
  encode_terms(static_cast<const float*>(request.in.front().data));
  STORMO_RETURN_IF_ERROR(row_.sums == CodecSums::kLinear ? sum_codes(request, perform)
                                                         : send_to_owners(request, perform));
  ++sums_;
  return {};
}

Status EncodedSum::sum_codes(const Request& request, const Perform& perform) {
  auto* const out = static_cast<float*>(request.out.front().data);
  const bool scatters = request.kind == OperationKind::kReduceScatter;
  const std::int64_t each = parts_.bytes / static_cast<std::int64_t>(sizeof(float));
  const Buffer codes{sent_.get(), each * world_.size(), DType::kFloat32};
  const Buffer own{received_.get(), each, DType::kFloat32};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = request.kind, .in = {&codes, 1}, .out = {scatters ? &own : &codes, 1}}));
  if (!scatters) {
    decode_all(out);
    return {};
  }
  const std::span part(out, static_cast<std::size_t>(request.out.front().count));
  std::ranges::fill(part, 0.0f);
  row_.decode_add(received_.get(), part, key(world_.rank(), world_.rank()));
  return {};
}

Status EncodedSum::send_to_owners(const Request& request, const Perform& perform) {
  const Buffer terms{sent_.get(), parts_.bytes * world_.size(), DType::kUInt8};
  const Buffer own_terms{received_.get(), parts_.bytes * world_.size(), DType::kUInt8};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllToAll, .in = {&terms, 1}, .out = {&own_terms, 1}}));
  for (int r = 0; r < world_.size(); ++r) {
    row_.decode_add(received_.get() + parts_.bytes * r, sum(), key(world_.rank(), r));
  }
  auto* const out = static_cast<float*>(request.out.front().data);
  if (request.kind == OperationKind::kReduceScatter) {
    std::ranges::copy(sum(), out);
    std::ranges::fill(sum(), 0.0f);
    return {};
  }
  encode(sum(), received_.get(), key(world_.rank(), world_.size()));
  const Buffer own{received_.get(), parts_.bytes, DType::kUInt8};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllGather, .in = {&own, 1}, .out = {&terms, 1}}));
  decode_all(out);
  return {};
}

}  // namespace stormo::comm
