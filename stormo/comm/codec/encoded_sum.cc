#include <stormo/comm/codec/encoded_sum.h>

#include <fmt/format.h>

#include <algorithm>

namespace stormo::comm {

EncodedSum::EncodedSum(Communicator& world, const Encoder& encoder, std::int64_t count)
    : world_(world),
      encoder_(encoder),
      count_(count),
      parts_(plan::encoded_parts(encoder.row, count, world.size())),
      residual_(static_cast<std::size_t>(parts_.padded * (world.size() + 1))),
      decoded_(static_cast<std::size_t>(parts_.padded)),
      sent_(allocate()),
      received_(allocate()) {}

// Where peers read it as it lies.
EncodedSum::Bytes EncodedSum::allocate() {
  const auto bytes = static_cast<std::size_t>(parts_.bytes * world_.size());
  transport::Arena& arena = world_.arena();
  if (auto* block = static_cast<std::byte*>(arena.allocate(bytes)); block != nullptr) {
    return {block, [&arena](std::byte* p) { arena.deallocate(p); }};
  }
  return {new std::byte[bytes], [](const std::byte* p) { delete[] p; }};
}

Status EncodedSum::check(const Request& request) const {
  const bool scatters = request.kind == OperationKind::kReduceScatter;
  const auto refuse = [&](const std::string& why) {
    return invalid_argument(fmt::format("a sum in codec {}: {}", encoder_.row.word, why));
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
  return std::span(residual_).subspan(static_cast<std::size_t>(parts_.padded * r), decoded_.size());
}

std::span<float> EncodedSum::sum() { return term(world_.size()); }

std::int64_t EncodedSum::elements_of(int part) const {
  return std::clamp<std::int64_t>(count_ - parts_.elements * part, 0, parts_.elements);
}

void EncodedSum::add_values(const float* values) {
  for (int r = 0; r < world_.size(); ++r) {
    float* const to = term(r).data();
    const std::int64_t n = elements_of(r);
    for (std::int64_t i = 0; i < n; ++i) to[i] += values[i];
    values += n;
  }
}

void EncodedSum::write_values(float* values) {
  for (int r = 0; r < world_.size(); ++r) {
    std::ranges::fill(decoded_, 0.0f);
    encoder_.decode_add(sent_.get() + parts_.bytes * r, decoded_);
    values = std::copy_n(decoded_.data(), elements_of(r), values);
  }
}

Status EncodedSum::perform(const Request& request, const Perform& perform) {
  STORMO_RETURN_IF_ERROR(check(request));
  const auto each = static_cast<std::int64_t>(world_.size());
  add_values(static_cast<const float*>(request.in.front().data));
  for (int r = 0; r < world_.size(); ++r) {
    encoder_.encode(term(r), sent_.get() + parts_.bytes * r);
  }
  const Buffer terms{sent_.get(), parts_.bytes * each, DType::kUInt8};
  const Buffer own_terms{received_.get(), parts_.bytes * each, DType::kUInt8};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllToAll, .in = {&terms, 1}, .out = {&own_terms, 1}}));
  for (int r = 0; r < world_.size(); ++r) {
    encoder_.decode_add(received_.get() + parts_.bytes * r, sum());
  }
  auto* const out = static_cast<float*>(request.out.front().data);
  if (request.kind == OperationKind::kReduceScatter) {
    std::copy_n(sum().data(), request.out.front().count, out);
    std::ranges::fill(sum(), 0.0f);
    return {};
  }
  encoder_.encode(sum(), received_.get());
  const Buffer own{received_.get(), parts_.bytes, DType::kUInt8};
  STORMO_RETURN_IF_ERROR(
      perform({.kind = OperationKind::kAllGather, .in = {&own, 1}, .out = {&terms, 1}}));
  write_values(out);
  return {};
}

}  // namespace stormo::comm
