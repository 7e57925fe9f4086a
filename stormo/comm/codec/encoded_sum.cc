#include <stormo/comm/codec/encoded_sum.h>

#include <fmt/format.h>

#include <algorithm>

namespace stormo::comm {

EncodedSum::Bytes EncodedSum::allocate(std::int64_t bytes) const {
  const auto size = static_cast<std::size_t>(bytes);
  transport::Arena& arena = world_.arena();
  if (auto* block = static_cast<std::byte*>(arena.allocate(size)); block != nullptr) {
    std::fill_n(block, size, std::byte{});
    return {block, [&arena](std::byte* p) { arena.deallocate(p); }};
  }
  return {new std::byte[size](), [](const std::byte* p) { delete[] p; }};
}

Status EncodedSum::check(const Request& request) const {
  const bool scatter = request.kind == OperationKind::kReduceScatter;
  const auto refuse = [&](const std::string& why) {
    return invalid_argument(fmt::format("a sum in codec {}: {}", codec_, why));
  };
  if (request.kind != OperationKind::kAllReduce && !(scatter && scatters())) {
    return refuse(scatters() ? "only all_reduce and reduce_scatter" : "only all_reduce");
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
  const std::int64_t wanted = scatter ? count_ / world_.size() : count_;
  if (in.count != count_ || out.count != wanted || (scatter && count_ % world_.size() != 0)) {
    return refuse(fmt::format("it was made for {} elements on {} ranks", count_, world_.size()));
  }
  return {};
}

Status EncodedSum::perform(const Request& request, const Perform& perform) {
  STORMO_RETURN_IF_ERROR(check(request));
  STORMO_RETURN_IF_ERROR(sum(request, perform));
  ++sums_;
  return {};
}

}  // namespace stormo::comm
