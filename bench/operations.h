#pragma once

#include <array>
#include <cstdint>
#include <string_view>
#include <vector>

namespace stormo::bench {

/// What can be measured. Rank 0 is the root.
enum class Operation {
  kAllReduce,
  kReduce,
  kBroadcast,
  kAllGather,
  kReduceScatter,
  kGather,
  kScatter,
  kAllToAll,
  kScan,
  kBarrier,
};

/// How much of the whole (the size that is asked for) a rank has as input or output.
enum class Share { kNone, kPart, kWhole };

/// One row per operation: everything the measuring loop knows about it.
struct OperationFacts {
  Operation operation;
  std::string_view name;
  Share root_in, in;    ///< of the root, of the other ranks
  Share root_out, out;  ///< likewise
  bool in_place;        ///< one buffer is input and output
  bool reduces;         ///< sums; else elements only move
  bool meets;           ///< nobody can end before everybody has begun
};

inline constexpr std::array kOperations = {
    OperationFacts{Operation::kAllReduce, "all_reduce", Share::kWhole, Share::kWhole, Share::kWhole,
                   Share::kWhole, true, true, true},
    OperationFacts{Operation::kReduce, "reduce", Share::kWhole, Share::kWhole, Share::kWhole,
                   Share::kNone, true, true, false},
    OperationFacts{Operation::kBroadcast, "broadcast", Share::kWhole, Share::kNone, Share::kWhole,
                   Share::kWhole, true, false, false},
    OperationFacts{Operation::kAllGather, "all_gather", Share::kPart, Share::kPart, Share::kWhole,
                   Share::kWhole, false, false, true},
    OperationFacts{Operation::kReduceScatter, "reduce_scatter", Share::kWhole, Share::kWhole,
                   Share::kPart, Share::kPart, false, true, true},
    OperationFacts{Operation::kGather, "gather", Share::kPart, Share::kPart, Share::kWhole,
                   Share::kNone, false, false, false},
    OperationFacts{Operation::kScatter, "scatter", Share::kWhole, Share::kNone, Share::kPart,
                   Share::kPart, false, false, false},
    OperationFacts{Operation::kAllToAll, "all_to_all", Share::kWhole, Share::kWhole, Share::kWhole,
                   Share::kWhole, false, false, true},
    OperationFacts{Operation::kScan, "scan", Share::kWhole, Share::kWhole, Share::kWhole,
                   Share::kWhole, true, true, false},
    OperationFacts{Operation::kBarrier, "barrier", Share::kNone, Share::kNone, Share::kNone,
                   Share::kNone, false, false, true},
};

const OperationFacts& facts_of(Operation operation);
/// Null when there is no such operation.
const OperationFacts* find_operation(std::string_view name);

/// Whether the whole consists of a part per rank.
bool has_parts(const OperationFacts& facts);

/// The bandwidth that hardware has to carry, as a multiple of size / time (the table of nccl-tests;
/// scan: 1, barrier: 0).
double bus_factor(Operation operation, int ranks);

/// Elements of one rank's buffers. The whole is rounded up to equal parts.
struct Shape {
  std::uint64_t whole = 0;
  std::uint64_t part = 0;
  std::uint64_t in = 0;
  std::uint64_t out = 0;
};
Shape shape_of(const OperationFacts& facts, std::uint64_t elements, int ranks, int rank);

/// A stretch of an output and where its elements come from: `count` elements at `offset` of the
/// input of rank `first`, or the sum of those of ranks `first` to `last`.
struct Segment {
  int first = 0;
  int last = 0;
  std::uint64_t offset = 0;
  std::uint64_t count = 0;
};
/// What the output of `rank` must be, from its beginning to its end.
std::vector<Segment> expected_output(const OperationFacts& facts, const Shape& shape, int ranks,
                                     int rank);

}  // namespace stormo::bench
