#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/model/model_shape.h>

// A model as a graph of segments, each computed by one of several ranks. J. Dean et al., "Large
// scale distributed deep networks", NIPS 2012: a partition of the model over machines, where a
// state is sent once to each machine that reads it, however many edges do.
namespace stormo::plan {

/// In GraphSegment::reads: the input of the graph, which every rank has.
inline constexpr int kGraphInput = -1;

/// A segment of a graph. Its output is called its state.
struct GraphSegment {
  std::string name;
  std::vector<int>
      reads;  ///< numbers of earlier segments, or kGraphInput; not empty, no number twice
  std::int64_t state = 0;             ///< elements per sample; at least 1
  std::int64_t flops_per_sample = 0;  ///< forward; 0 when unknown
  bool operator==(const GraphSegment&) const = default;
};

/// The state of the last segment is the output of the graph. Each other one is read by a later
/// segment.
struct SegmentGraph {
  std::vector<GraphSegment> segments;
  bool operator==(const SegmentGraph&) const = default;
};

/// Which rank computes each segment.
struct GraphPartition {
  int ranks = 1;
  std::vector<int> owners;  ///< by segment: 0 to ranks - 1
  bool operator==(const GraphPartition&) const = default;
};

/// kInvalidArgument, with all that is wrong, for a graph that is not as stated above.
Status check(const SegmentGraph& graph);
/// The same for a partition of a graph that is: another number of owners, a rank that is not there,
/// or one that computes nothing.
Status check(const SegmentGraph& graph, const GraphPartition& partition);

/// A state that one rank sends to another.
struct StateMessage {
  int segment = 0;
  int from = 0, to = 0;
  bool operator==(const StateMessage&) const = default;
};

/// In which order ranks compute a checked graph: all segments of round 0, exchange 0, all segments
/// of round 1, and so on. A segment is in the first round in which its rank has all that it reads.
/// Behind the last round there is one more exchange, which gives every rank the output.
struct GraphRounds {
  std::vector<int> rounds;  ///< by segment
  /// Messages of each exchange, by segment, then by receiver. None is empty with two or more ranks.
  std::vector<std::vector<StateMessage>> exchanges;
  int count() const;  ///< of rounds; at least 1
};
GraphRounds rounds_of(const SegmentGraph& graph, const GraphPartition& partition);

/// The exchanges as elements per sample between pairs of ranks, for SegmentShape.
std::vector<std::vector<StateCrossing>> crossings_of(const SegmentGraph& graph,
                                                     const GraphRounds& rounds);
/// Elements per sample of all messages but the output, which goes to every rank in any partition.
std::int64_t elements_crossing(const SegmentGraph& graph, const GraphRounds& rounds);

/// What a partition brings, in a few lines: the segments and operations of each rank, what crosses
/// between which ranks, and how many times as fast as one rank they can be at most, where each
/// round lasts as long as its slowest rank and messages take no time.
std::string describe(const SegmentGraph& graph, const GraphPartition& partition);

}  // namespace stormo::plan
