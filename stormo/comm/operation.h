#pragma once

#include <cstdint>
#include <span>
#include <string>

#include <stormo/base/ids.h>
#include <stormo/comm/buffer.h>

namespace stormo::comm {

enum class OperationKind : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kSend,
  kReceive,
  kFinalize,
};

/// What a rank called, as a plain value that ranks compare. Also the wire format of a board: fixed
/// layout, no padding.
struct Operation {
  std::uint64_t sequence = 0;  ///< position among the group's collectives; 0 for send and receive
  std::uint64_t count = 0;     ///< elements over all buffers
  std::uint64_t layout = 0;    ///< hash of the buffers' counts
  std::int32_t root = 0;       ///< broadcast: root; send, receive: the peer
  std::uint32_t tag = 0;       ///< send, receive
  std::uint32_t num_buffers = 0;
  OperationKind kind = OperationKind::kBarrier;
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kUInt8;
  std::uint8_t reserved = 0;
  bool operator==(const Operation&) const = default;
};
static_assert(sizeof(Operation) == 40);

/// Equal on two ranks exactly when they called the same operation (up to hash collisions of 64
/// bits). A send and its receive have equal fingerprints.
Tag fingerprint(const Operation& operation);

/// "all_reduce #40 (average of 1024 float32 in 3 buffers)".
std::string to_text(const Operation& operation);
/// "all_reduce".
std::string_view to_string(OperationKind kind);
std::string_view to_string(ReduceOp op);

/// The operation that `kind` on `buffers` is; all buffers must have one dtype.
Operation describe(OperationKind kind, std::span<const Buffer> buffers, ReduceOp op, Rank root);

}  // namespace stormo::comm
