#include <stormo/comm/operation.h>

#include <fmt/format.h>

#include <cstddef>
#include <type_traits>

namespace stormo::comm {
namespace {

constexpr std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15ull + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 33);
}

}  // namespace

static_assert(std::has_unique_object_representations_v<Operation>);

Tag fingerprint(const Operation& o) {
  const bool message = o.kind == OperationKind::kSend || o.kind == OperationKind::kReceive;
  const auto kind = message ? OperationKind::kSend : o.kind;
  std::uint64_t h = mix(o.sequence, o.count);
  h = mix(h, o.layout);
  h = mix(h, (std::uint64_t{o.tag} << 32) | (message ? 0u : static_cast<std::uint32_t>(o.root)));
  h = mix(h, (static_cast<std::uint64_t>(kind) << 16) | (static_cast<std::uint64_t>(o.op) << 8) |
                 static_cast<std::uint64_t>(o.dtype));
  return h;
}

std::string_view to_string(OperationKind kind) {
  switch (kind) {
    case OperationKind::kAllReduce: return "all_reduce";
    case OperationKind::kBroadcast: return "broadcast";
    case OperationKind::kAllGather: return "all_gather";
    case OperationKind::kReduceScatter: return "reduce_scatter";
    case OperationKind::kBarrier: return "barrier";
    case OperationKind::kSend: return "send";
    case OperationKind::kReceive: return "recv";
    case OperationKind::kFinalize: return "finalize";
  }
  return "unknown operation";
}

std::string_view to_string(ReduceOp op) {
  switch (op) {
    case ReduceOp::kSum: return "sum";
    case ReduceOp::kAverage: return "average";
    case ReduceOp::kWeightedAverage: return "weighted average";
    case ReduceOp::kMin: return "min";
    case ReduceOp::kMax: return "max";
  }
  return "unknown reduction";
}

std::string to_text(const Operation& o) {
  const std::string elements =
      fmt::format("{} {}{}", o.count, to_string(o.dtype),
                  o.num_buffers > 1 ? fmt::format(" in {} buffers", o.num_buffers) : "");
  switch (o.kind) {
    case OperationKind::kAllReduce:
    case OperationKind::kReduceScatter:
      return fmt::format("{} #{} ({} of {})", to_string(o.kind), o.sequence, to_string(o.op),
                         elements);
    case OperationKind::kBroadcast:
      return fmt::format("broadcast #{} ({} from rank {})", o.sequence, elements, o.root);
    case OperationKind::kAllGather: return fmt::format("all_gather #{} ({})", o.sequence, elements);
    case OperationKind::kBarrier:
    case OperationKind::kFinalize: return fmt::format("{} #{}", to_string(o.kind), o.sequence);
    case OperationKind::kSend:
      return fmt::format("send to {} ({}, tag {})", o.root, elements, o.tag);
    case OperationKind::kReceive:
      return fmt::format("recv from {} ({}, tag {})", o.root, elements, o.tag);
  }
  return "unknown operation";
}

Operation describe(OperationKind kind, std::span<const Buffer> buffers, ReduceOp op, Rank root) {
  Operation o;
  o.kind = kind;
  o.op = op;
  o.root = root;
  o.num_buffers = static_cast<std::uint32_t>(buffers.size());
  if (!buffers.empty()) o.dtype = buffers.front().dtype;
  for (const Buffer& b : buffers) {
    o.count += static_cast<std::uint64_t>(b.count);
    o.layout = mix(o.layout, static_cast<std::uint64_t>(b.count));
  }
  return o;
}

}  // namespace stormo::comm
