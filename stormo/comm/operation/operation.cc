#include <stormo/comm/operation/operation.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstddef>
#include <type_traits>

namespace stormo::comm {
namespace {

constexpr std::uint64_t mix(std::uint64_t h, std::uint64_t v) {
  h ^= v + 0x9E3779B97F4A7C15ull + (h << 6) + (h >> 2);
  h *= 0xff51afd7ed558ccdull;
  return h ^ (h >> 33);
}

/// What is true of each reduction, by its value.
struct ReduceRow {
  ReduceOp op;
  std::string_view name;
  Combine combine = Combine::kSum;
};
constexpr std::array<ReduceRow, static_cast<std::size_t>(ReduceOp::kUser) + 1> kReduceRows = {{
    {ReduceOp::kSum, "sum"},
    {ReduceOp::kAverage, "average"},
    {ReduceOp::kWeightedAverage, "weighted average"},
    {ReduceOp::kMin, "min", Combine::kMin},
    {ReduceOp::kMax, "max", Combine::kMax},
    {ReduceOp::kProduct, "product", Combine::kProduct},
    {ReduceOp::kBitAnd, "bitwise and", Combine::kBitAnd},
    {ReduceOp::kBitOr, "bitwise or", Combine::kBitOr},
    {ReduceOp::kBitXor, "bitwise xor", Combine::kBitXor},
    {ReduceOp::kLogicalAnd, "logical and", Combine::kLogicalAnd},
    {ReduceOp::kLogicalOr, "logical or", Combine::kLogicalOr},
    {ReduceOp::kLogicalXor, "logical xor", Combine::kLogicalXor},
    {ReduceOp::kUser, "user's reduction"},
}};
const ReduceRow& row_of(ReduceOp op) { return kReduceRows[static_cast<std::size_t>(op)]; }

static_assert(kNumOperationKinds == static_cast<std::size_t>(OperationKind::kSubgroup) + 1);
static_assert(std::ranges::all_of(kOperationRows, [](const OperationRow& row) {
  return &row == &row_of(row.kind);
}));
static_assert(std::ranges::all_of(kReduceRows, [](const ReduceRow& row) {
  return &row == &kReduceRows[static_cast<std::size_t>(row.op)];
}));

}  // namespace

static_assert(std::has_unique_object_representations_v<Operation>);

/// Every member differs from the others.
constexpr Operation kSample{.sequence = 1,
                            .count = 2,
                            .layout = 3,
                            .root = -4,
                            .tag = 5,
                            .num_buffers = 6,
                            .kind = OperationKind::kReduce,
                            .op = ReduceOp::kLogicalOr,
                            .dtype = DType::kInt16,
                            .at_shards = Operation::AtShards::kExchange};
static_assert(std::bit_cast<Operation>(words_of(kSample)) == kSample);

Tag fingerprint(const Operation& o) {
  const bool message = is_message(o.kind);
  const auto kind = message ? OperationKind::kSend : o.kind;
  const std::uint64_t peer = message ? 0u : static_cast<std::uint32_t>(o.root);
  const std::uint64_t facts = (static_cast<std::uint64_t>(kind) << 16) |
                              (static_cast<std::uint64_t>(o.op) << 8) |
                              static_cast<std::uint64_t>(o.dtype);
  // Odd factors: operations that differ in one word never have the same sum. A chain of mixes would
  // take four times as long, because each product waits for the one before.
  const Tag form = o.count * 0xbf58476d1ce4e5b9ull + o.layout * 0x94d049bb133111ebull +
                   ((std::uint64_t{o.tag} << 32) | peer) * 0xd6e8feb86659fd93ull +
                   facts * 0xff51afd7ed558ccdull;
  return numbered(form, o.sequence);
}

std::string_view name_of(const Operation& o) {
  switch (o.at_shards) {
    case Operation::AtShards::kPull: return "pull";
    case Operation::AtShards::kPush: return "push";
    case Operation::AtShards::kExchange: return "exchange";
    case Operation::AtShards::kNo: break;
  }
  return to_string(o.kind);
}

std::string_view to_string(ReduceOp op) { return row_of(op).name; }
Combine combine_of(ReduceOp op) { return row_of(op).combine; }

std::string to_text(const Operation& o) {
  // a peer may have sent it
  const bool known = static_cast<std::size_t>(o.kind) < kOperationRows.size() &&
                     static_cast<std::size_t>(o.op) < kReduceRows.size();
  if (!known) return fmt::format("unknown operation #{}", o.sequence);
  if (o.at_shards != Operation::AtShards::kNo) {
    return fmt::format("{} #{}", name_of(o), o.sequence);
  }
  const std::string elements =
      fmt::format("{} {}{}", o.count, to_string(o.dtype),
                  o.num_buffers > 1 ? fmt::format(" in {} buffers", o.num_buffers) : "");
  std::string what =
      reduces(o.kind) ? fmt::format("{} of {}", to_string(o.op), elements) : elements;
  switch (o.kind) {
    case OperationKind::kSend:
      return fmt::format("send to {} ({}, tag {})", o.root, elements, o.tag);
    case OperationKind::kReceive:
      return fmt::format("recv from {} ({}, tag {})",
                         o.root == kAnyRank ? "any" : std::to_string(o.root), elements, o.tag);
    case OperationKind::kSubgroup:
      return fmt::format("subgroup #{} (members hash to {:08x})", o.sequence, o.tag);
    case OperationKind::kBarrier:
    case OperationKind::kFinalize: return fmt::format("{} #{}", to_string(o.kind), o.sequence);
    case OperationKind::kBroadcast:
    case OperationKind::kScatter: what += fmt::format(" from rank {}", o.root); break;
    case OperationKind::kReduce:
    case OperationKind::kGather: what += fmt::format(" to rank {}", o.root); break;
    case OperationKind::kAllReduce:
    case OperationKind::kReduceScatter:
    case OperationKind::kAllGather:
    case OperationKind::kAllToAll:
    case OperationKind::kScan:
    case OperationKind::kExclusiveScan: break;
  }
  return fmt::format("{} #{} ({})", to_string(o.kind), o.sequence, what);
}

OperationKind kind_of(plan::GoalKind goal) {
  return std::ranges::find(kOperationRows, goal, &OperationRow::goal)->kind;
}

Operation describe(const Request& r, int size) {
  Operation o;
  o.kind = r.kind;
  o.op = reduces(r.kind) ? r.reduction.op : ReduceOp::kSum;
  o.root = r.root;
  o.tag = r.tag;
  // the list that says the most on every rank: a root's long side is empty elsewhere
  const bool by_parts = r.kind == OperationKind::kAllGather || r.kind == OperationKind::kGather;
  const bool to_parts = r.kind == OperationKind::kScatter;
  const auto& list = to_parts ? r.out : r.in;
  o.num_buffers = static_cast<std::uint32_t>(list.size());
  if (!list.empty()) o.dtype = list.front().dtype;
  const auto parts = static_cast<std::uint64_t>(by_parts || to_parts ? size : 1);
  if (r.counts.empty()) {
    for (const Buffer& b : list) {
      o.count += static_cast<std::uint64_t>(b.count) * parts;
      o.layout = mix(o.layout, static_cast<std::uint64_t>(b.count));
    }
  } else if (r.kind != OperationKind::kAllToAll) {  // there every rank has counts of its own
    for (const std::int64_t n : r.counts) {
      o.count += static_cast<std::uint64_t>(n);
      o.layout = mix(o.layout, static_cast<std::uint64_t>(n));
    }
  }
  if (!r.counts.empty()) o.layout = mix(o.layout, 1);
  for (const char c : r.algorithm) o.layout = mix(o.layout, static_cast<unsigned char>(c));
  if (r.reduction.user) {
    for (const char c : r.reduction.user->name)
      o.layout = mix(o.layout, static_cast<unsigned char>(c));
  }
  return o;
}

Event event_of(const Operation& operation, Lane lane, Rank rank, TimePoint start, TimePoint end) {
  return {.lane = lane,
          .name = to_string(operation.kind),
          .rank = rank,
          .bytes = operation.count * size_of(operation.dtype),
          .start = start,
          .end = end};
}

}  // namespace stormo::comm
