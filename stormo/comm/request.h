#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/comm/buffer.h>
#include <stormo/comm/kernels/kernels.h>

namespace stormo::comm {

/// Receives from whoever sends.
inline constexpr Rank kAnyRank = -1;

/// Ranks of one job, which all run the same version, compare the values.
enum class OperationKind : std::uint8_t {
  kAllReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kBarrier,
  kSend,
  kReceive,
  kFinalize,
  kReduce,
  kGather,
  kScatter,
  kAllToAll,
  kScan,
  kExclusiveScan,
  kSubgroup,  ///< the agreement on the members of a subgroup; the last one: others stand before it
};
inline constexpr std::size_t kNumOperationKinds = 15;

enum class ReduceOp : std::uint8_t {
  kSum,
  kAverage,          ///< sum / size; floating types
  kWeightedAverage,  ///< sum of weight_r * x_r / sum of weight_r; ranks of weight 0 are not read
  kMin,
  kMax,
  kProduct,
  kBitAnd,  ///< bit and logical operations: integers and bool
  kBitOr,
  kBitXor,
  kLogicalAnd,
  kLogicalOr,
  kLogicalXor,
  kUser,  ///< the last one, see operation.cc
};

/// A user-defined reduction; it must be associative and commutative. Ranks compare only `name`, so
/// different reductions need different names. `combine` is called on slices of any length, from any
/// thread, on all ranks.
struct UserReduction {
  std::string name;
  CombineFunction combine;
};

/// How terms are combined: a predefined operation, or a user-defined one.
struct Reduction {
  Reduction(ReduceOp known) : op(known) {}  // NOLINT: a ReduceOp is a Reduction
  explicit Reduction(std::shared_ptr<const UserReduction> own)
      : op(ReduceOp::kUser), user(std::move(own)) {}
  ReduceOp op = ReduceOp::kSum;
  std::shared_ptr<const UserReduction> user;
};

class EncodedSum;

/// One operation as a rank calls it. Spans and buffers are borrowed: see Communicator for how long.
struct Request {
  OperationKind kind = OperationKind::kBarrier;
  std::span<const Buffer> in;   ///< what this rank contributes
  std::span<const Buffer> out;  ///< where its part of the result goes; in place: the same buffers
  Reduction reduction = ReduceOp::kSum;
  Rank root = 0;  ///< send: to whom; receive: from whom, or kAnyRank
  /// receive: set to the sender before the call is complete, if not null. Borrowed until then.
  Rank* source = nullptr;
  std::uint32_t tag = 0;
  double weight = 1;
  /// kWeightedAverage: the sum of all ranks' weights, if all ranks know it; 0: not known. Knowing
  /// it saves a round between hosts.
  double total_weight = 0;
  /// Elements of each rank's part, for operations with parts; empty: equal parts. all_to_all:
  /// elements of `in` for each rank.
  std::span<const std::int64_t> counts;
  std::span<const std::int64_t> out_counts;  ///< all_to_all: elements from each rank in `out`
  /// Name of a builder to use instead of the selected one (empty: the selected one); equal on all
  /// ranks.
  std::string_view algorithm;
  int pieces = 1;  ///< into which `algorithm` cuts the data
  /// A sum whose terms travel encoded (codec/encoded_sum.h); null: as they are. Borrowed as long as
  /// the buffers.
  EncodedSum* encoding = nullptr;
};

}  // namespace stormo::comm
