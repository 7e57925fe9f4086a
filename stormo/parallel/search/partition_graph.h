#pragma once

#include <cstdint>

#include <stormo/base/status.h>
#include <stormo/plan/model/segment_graph.h>

namespace stormo::parallel {

struct PartitionOptions {
  /// A rank may have up to (1 + imbalance) times its equal part of all operations, and always one
  /// segment, however large it is.
  double imbalance = 0.1;
  int tries = 16;  ///< starts of the search
  std::uint64_t seed = 0;
};

/// Divides a graph so that few elements cross (plan::elements_crossing()) and no rank has too many
/// operations; where that is impossible, as few too many as it finds. Among equal ones it takes the
/// one with the shortest rounds. Where no operations are known, each segment counts as one.
///
/// Searches by moves of one segment from several starts: C. Fiduccia, R. Mattheyses, "A linear-time
/// heuristic for improving network partitions", DAC 1982. It need not find the best partition. The
/// same arguments give the same one. A library such as METIS does not fit: it counts a state also
/// against the direction of an edge. O(tries * passes * segments * edges * ranks): 50 segments over
/// 8 ranks take 0.3 s, 200 segments 4 s, 500 segments 40 s.
///
/// kInvalidArgument for a graph that plan::check() refuses, ranks < 1 or more than segments, and
/// options out of range.
Result<plan::GraphPartition> partition(const plan::SegmentGraph& graph, int ranks,
                                       const PartitionOptions& options = {});

}  // namespace stormo::parallel
