#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/event.h>
#include <stormo/base/ids.h>
#include <stormo/comm/request.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// A call of an operation, as a plain value that ranks compare. It is also part of the format of a
/// board: fixed layout, no padding.
struct Operation {
  std::uint64_t sequence = 0;  ///< position among the group's collectives; 0 for send and receive
  std::uint64_t count = 0;     ///< elements of the whole, all parts together
  std::uint64_t layout =
      0;                  ///< hash of the parts' counts and of the name of a user-defined reduction
  std::int32_t root = 0;  ///< send, receive: the peer
  std::uint32_t tag = 0;  ///< send, receive
  std::uint32_t num_buffers = 0;
  OperationKind kind = OperationKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kUInt8;
  /// Not kNo: a call at server shards. No engine runs it, and it is recorded to find stalls only.
  enum class AtShards : std::uint8_t { kNo, kPull, kPush, kExchange } at_shards = AtShards::kNo;
  bool operator==(const Operation&) const = default;
};
static_assert(sizeof(Operation) == 40);

inline constexpr std::size_t kOperationWords = sizeof(Operation) / sizeof(std::uint64_t);
using OperationWords = std::array<std::uint64_t, kOperationWords>;
/// The bytes of an Operation; std::bit_cast is the inverse. They are combined in registers, because
/// a load of 8 or 16 bytes would have to wait until preceding stores of 1 to 4 bytes are in the
/// cache: 40 ns in a small all-reduce.
constexpr OperationWords words_of(const Operation& o) {
  const auto byte = [](auto value, int at) {
    return static_cast<std::uint64_t>(static_cast<std::uint8_t>(value)) << (8 * at);
  };
  return {o.sequence, o.count, o.layout,
          std::uint64_t{static_cast<std::uint32_t>(o.root)} | std::uint64_t{o.tag} << 32,
          std::uint64_t{o.num_buffers} | byte(o.kind, 4) | byte(o.op, 5) | byte(o.dtype, 6) |
              byte(o.at_shards, 7)};
}
static_assert(std::endian::native == std::endian::little);  // the order of the bytes above

/// Equal on two ranks exactly when they called the same operation (except for collisions of the
/// 64-bit hash). A send and its receive have equal fingerprints.
Tag fingerprint(const Operation& operation);
/// That of an operation with this sequence, of that of the same without one.
constexpr Tag numbered(Tag form, std::uint64_t sequence) {
  return form + sequence * 0x9e3779b97f4a7c15ull;
}

/// "all_reduce #40 (average of 1024 float32 in 3 buffers)".
std::string to_text(const Operation& operation);
/// "all_reduce"; of a call at server shards "pull".
std::string_view name_of(const Operation& operation);

/// How the buffers of an operation belong together.
enum class BufferForm : std::uint8_t {
  kInPlace,   ///< `in` and `out` are the same buffers, any number of them; a message has one
  kGathers,   ///< `in` is this rank's part, `out` the whole
  kScatters,  ///< `in` is the whole, `out` this rank's part
  kExchanges  ///< both have a part for each rank
};

/// What is true of the operations of one kind.
struct OperationRow {
  OperationKind kind;
  std::string_view name;
  BufferForm form = BufferForm::kInPlace;
  bool reduces = false;                              ///< combines terms of several ranks
  plan::GoalKind goal = plan::GoalKind::kAllReduce;  ///< of its schedules, if it has some
};
/// By value.
inline constexpr std::array<OperationRow, kNumOperationKinds> kOperationRows = [] {
  using enum BufferForm;
  using plan::GoalKind;
  return std::array<OperationRow, kNumOperationKinds>{{
      {OperationKind::kAllReduce, "all_reduce", kInPlace, true},
      {OperationKind::kBroadcast, "broadcast", kInPlace, false, GoalKind::kBroadcast},
      {OperationKind::kAllGather, "all_gather", kGathers, false, GoalKind::kAllGather},
      {OperationKind::kReduceScatter, "reduce_scatter", kScatters, true, GoalKind::kReduceScatter},
      {OperationKind::kBarrier, "barrier"},
      {OperationKind::kSend, "send"},
      {OperationKind::kReceive, "recv"},
      {OperationKind::kFinalize, "finalize"},
      {OperationKind::kReduce, "reduce", kInPlace, true, GoalKind::kReduce},
      {OperationKind::kGather, "gather", kGathers, false, GoalKind::kGather},
      {OperationKind::kScatter, "scatter", kScatters, false, GoalKind::kScatter},
      {OperationKind::kAllToAll, "all_to_all", kExchanges, false, GoalKind::kAllToAll},
      {OperationKind::kScan, "scan", kInPlace, true, GoalKind::kScan},
      {OperationKind::kExclusiveScan, "exclusive_scan", kInPlace, true, GoalKind::kScan},
      {OperationKind::kSubgroup, "subgroup"},
  }};
}();
constexpr const OperationRow& row_of(OperationKind kind) {
  return kOperationRows[static_cast<std::size_t>(kind)];
}
constexpr std::string_view to_string(OperationKind kind) { return row_of(kind).name; }
constexpr BufferForm form_of(OperationKind kind) { return row_of(kind).form; }
constexpr bool in_place(OperationKind kind) { return form_of(kind) == BufferForm::kInPlace; }
constexpr bool reduces(OperationKind kind) { return row_of(kind).reduces; }
/// Whether it is between two ranks.
constexpr bool is_message(OperationKind kind) {
  return kind == OperationKind::kSend || kind == OperationKind::kReceive;
}
/// The goal of the schedules of a collective; that of a barrier is an all-reduce.
constexpr plan::GoalKind goal_of(OperationKind kind) { return row_of(kind).goal; }
/// The collective whose schedules have this goal.
OperationKind kind_of(plan::GoalKind goal);

std::string_view to_string(ReduceOp op);
/// How terms are combined where none is scaled and the user gives no function.
Combine combine_of(ReduceOp op);

/// Whether the operation reads this rank's input.
constexpr bool contributes(const Request& request, Rank me) {
  const bool from_root =
      request.kind == OperationKind::kBroadcast || request.kind == OperationKind::kScatter;
  return !from_root || request.root == me;
}

/// The Operation of a checked request in a group of `size` ranks.
Operation describe(const Request& request, int size);

/// What a sink is told of an operation, or of a part of one.
Event event_of(const Operation& operation, Lane lane, Rank rank, TimePoint start, TimePoint end);

}  // namespace stormo::comm
