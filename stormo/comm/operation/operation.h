#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <string>

#include <stormo/base/ids.h>
#include <stormo/comm/request.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// What a rank called, as a plain value that ranks compare. Also the wire format of a board: fixed
/// layout, no padding.
struct Operation {
  std::uint64_t sequence = 0;  ///< position among the group's collectives; 0 for send and receive
  std::uint64_t count = 0;     ///< elements of the whole: of all parts together
  std::uint64_t layout = 0;    ///< hash of the parts' counts and of a user's operation
  std::int32_t root = 0;       ///< send, receive: the peer
  std::uint32_t tag = 0;       ///< send, receive
  std::uint32_t num_buffers = 0;
  OperationKind kind = OperationKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kUInt8;
  std::uint8_t reserved = 0;
  bool operator==(const Operation&) const = default;
};
static_assert(sizeof(Operation) == 40);

inline constexpr std::size_t kOperationWords = sizeof(Operation) / sizeof(std::uint64_t);
using OperationWords = std::array<std::uint64_t, kOperationWords>;
/// The bytes of an Operation, for a copy of one that was just written: std::bit_cast gives it back.
/// Put together in registers, because a load of 8 or 16 bytes has to wait until stores of 1 to 4
/// bytes are in the cache: 40 ns of a small all-reduce.
constexpr OperationWords words_of(const Operation& o) {
  const auto byte = [](auto value, int at) {
    return static_cast<std::uint64_t>(static_cast<std::uint8_t>(value)) << (8 * at);
  };
  return {o.sequence, o.count, o.layout,
          std::uint64_t{static_cast<std::uint32_t>(o.root)} | std::uint64_t{o.tag} << 32,
          std::uint64_t{o.num_buffers} | byte(o.kind, 4) | byte(o.op, 5) | byte(o.dtype, 6) |
              byte(o.reserved, 7)};
}
static_assert(std::endian::native == std::endian::little);  // the order of the bytes above

/// Equal on two ranks exactly when they called the same operation (up to hash collisions of 64
/// bits). A send and its receive have equal fingerprints.
Tag fingerprint(const Operation& operation);

/// "all_reduce #40 (average of 1024 float32 in 3 buffers)".
std::string to_text(const Operation& operation);
/// "all_reduce".
std::string_view to_string(OperationKind kind);
std::string_view to_string(ReduceOp op);

/// Whether the operation combines terms of several ranks.
constexpr bool reduces(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduceScatter ||
         kind == OperationKind::kReduce || kind == OperationKind::kScan ||
         kind == OperationKind::kExclusiveScan;
}
/// Whether `in` and `out` are always the same buffers (any number of them).
constexpr bool in_place(OperationKind kind) {
  return kind == OperationKind::kAllReduce || kind == OperationKind::kReduce ||
         kind == OperationKind::kBroadcast || kind == OperationKind::kScan ||
         kind == OperationKind::kExclusiveScan || kind == OperationKind::kBarrier ||
         kind == OperationKind::kFinalize || kind == OperationKind::kSubgroup ||
         kind == OperationKind::kSend || kind == OperationKind::kReceive;
}

/// Whether what this rank has before the call matters.
constexpr bool contributes(const Request& request, Rank me) {
  const bool from_root =
      request.kind == OperationKind::kBroadcast || request.kind == OperationKind::kScatter;
  return !from_root || request.root == me;
}

/// What the schedules of a collective are for; a barrier is an all-reduce.
plan::GoalKind goal_of(OperationKind kind);
/// The collective whose schedules have this goal.
OperationKind kind_of(plan::GoalKind goal);

/// The operation that a checked request of a group of `size` ranks is.
Operation describe(const Request& request, int size);

}  // namespace stormo::comm
