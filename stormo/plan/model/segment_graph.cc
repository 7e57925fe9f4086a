#include <stormo/plan/model/segment_graph.h>

#include <algorithm>
#include <cstdio>
#include <map>
#include <set>
#include <string_view>
#include <utility>

#include <stormo/base/index.h>

namespace stormo::plan {
namespace {

/// "a; b".
void add(std::string& wrong, std::string_view what) {
  if (!wrong.empty()) wrong += "; ";
  wrong += what;
}

Status refusal(std::string_view what, const std::string& wrong) {
  if (wrong.empty()) return {};
  return invalid_argument(std::string(what) + ": " + wrong);
}

/// By round and rank: operations of its segments.
std::vector<std::vector<std::int64_t>> loads_of(const SegmentGraph& graph,
                                                const GraphPartition& partition,
                                                const GraphRounds& rounds) {
  std::vector<std::vector<std::int64_t>> out(at(rounds.count()),
                                             std::vector<std::int64_t>(at(partition.ranks)));
  for (std::size_t i = 0; i < graph.segments.size(); ++i) {
    out[at(rounds.rounds[i])][at(partition.owners[i])] += graph.segments[i].flops_per_sample;
  }
  return out;
}

/// "at most 1.60 times as fast as one rank in 3 rounds".
std::string speed_text(const SegmentGraph& graph, const GraphPartition& partition,
                       const GraphRounds& rounds) {
  std::int64_t all = 0, longest = 0;
  for (const auto& loads : loads_of(graph, partition, rounds)) {
    longest += std::ranges::max(loads);
    for (const std::int64_t load : loads) all += load;
  }
  const std::string in = "in " + std::to_string(rounds.count()) + " round(s)";
  if (longest == 0) return "computed " + in + "; operations of segments are unknown\n";
  char times[32];
  std::snprintf(times, sizeof times, "%.2f",
                static_cast<double>(all) / static_cast<double>(longest));
  return std::string("at most ") + times + " times as fast as one rank, " + in + "\n";
}

}  // namespace

int GraphRounds::count() const { return std::ranges::max(rounds) + 1; }

Status check(const SegmentGraph& graph) {
  std::string wrong;
  std::set<std::string_view> names;
  std::vector<bool> is_read(graph.segments.size());
  if (graph.segments.empty()) add(wrong, "it has no segments");
  for (std::size_t i = 0; i < graph.segments.size(); ++i) {
    const GraphSegment& s = graph.segments[i];
    const std::string who = "segment '" + s.name + "' ";
    if (s.name.empty() || !names.insert(s.name).second) add(wrong, who + "needs a name of its own");
    if (s.state < 1) add(wrong, who + "has a state of no elements");
    if (s.flops_per_sample < 0) add(wrong, who + "has negative operations");
    if (s.reads.empty()) add(wrong, who + "reads nothing");
    for (const int r : s.reads) {
      const bool is_earlier = r == kGraphInput || (r >= 0 && at(r) < i);
      if (!is_earlier) add(wrong, who + "reads segment " + std::to_string(r) + ", no earlier one");
      if (std::ranges::count(s.reads, r) > 1) add(wrong, who + "reads a state twice");
      if (is_earlier && r != kGraphInput) is_read[at(r)] = true;
    }
  }
  for (std::size_t i = 0; i + 1 < graph.segments.size(); ++i) {
    if (!is_read[i]) add(wrong, "no segment reads '" + graph.segments[i].name + "'");
  }
  return refusal("graph of segments", wrong);
}

Status check(const SegmentGraph& graph, const GraphPartition& partition) {
  std::string wrong;
  if (partition.ranks < 1) add(wrong, "there are no ranks");
  if (partition.owners.size() != graph.segments.size()) {
    add(wrong, std::to_string(partition.owners.size()) + " owners are given for " +
                   std::to_string(graph.segments.size()) + " segments");
  }
  std::set<int> owners;
  for (const int owner : partition.owners) {
    if (owner < 0 || owner >= partition.ranks) {
      add(wrong,
          "rank " + std::to_string(owner) + " is none of the " + std::to_string(partition.ranks));
    } else {
      owners.insert(owner);
    }
  }
  if (wrong.empty() && std::ssize(owners) < partition.ranks) {
    add(wrong, std::to_string(partition.ranks - std::ssize(owners)) + " of " +
                   std::to_string(partition.ranks) + " ranks compute no segment");
  }
  return refusal("partition of a graph", wrong);
}

GraphRounds rounds_of(const SegmentGraph& graph, const GraphPartition& partition) {
  GraphRounds out;
  std::vector<std::set<int>> readers(graph.segments.size());  // ranks that do not compute it
  for (std::size_t i = 0; i < graph.segments.size(); ++i) {
    int round = 0;
    for (const int r : graph.segments[i].reads) {
      if (r == kGraphInput) continue;
      const bool crosses = partition.owners[at(r)] != partition.owners[i];
      round = std::max(round, out.rounds[at(r)] + (crosses ? 1 : 0));
      if (crosses) readers[at(r)].insert(partition.owners[i]);
    }
    out.rounds.push_back(round);
  }
  out.exchanges.resize(at(out.count()));
  for (int rank = 0; rank < partition.ranks; ++rank) {
    if (rank != partition.owners.back()) readers.back().insert(rank);
  }
  for (std::size_t i = 0; i < readers.size(); ++i) {
    // the output goes behind the last round, in which it is computed
    auto& exchange = out.exchanges[at(i + 1 < readers.size() ? out.rounds[i] : out.count() - 1)];
    for (const int to : readers[i]) {
      exchange.push_back({.segment = static_cast<int>(i), .from = partition.owners[i], .to = to});
    }
  }
  return out;
}

std::vector<std::vector<StateCrossing>> crossings_of(const SegmentGraph& graph,
                                                     const GraphRounds& rounds) {
  std::vector<std::vector<StateCrossing>> out;
  for (const std::vector<StateMessage>& exchange : rounds.exchanges) {
    std::map<std::pair<int, int>, std::int64_t> pairs;
    for (const StateMessage& m : exchange) {
      pairs[{m.from, m.to}] += graph.segments[at(m.segment)].state;
    }
    std::vector<StateCrossing>& list = out.emplace_back();
    for (const auto& [ends, elements] : pairs) list.push_back({ends.first, ends.second, elements});
  }
  return out;
}

std::int64_t elements_crossing(const SegmentGraph& graph, const GraphRounds& rounds) {
  std::int64_t out = 0;
  for (std::size_t e = 0; e + 1 < rounds.exchanges.size(); ++e) {
    for (const StateMessage& m : rounds.exchanges[e]) out += graph.segments[at(m.segment)].state;
  }
  return out;
}

std::string describe(const SegmentGraph& graph, const GraphPartition& partition) {
  const GraphRounds rounds = rounds_of(graph, partition);
  std::string out;
  for (int rank = 0; rank < partition.ranks; ++rank) {
    std::int64_t flops = 0;
    std::string names;
    for (std::size_t i = 0; i < graph.segments.size(); ++i) {
      if (partition.owners[i] != rank) continue;
      flops += graph.segments[i].flops_per_sample;
      names += (names.empty() ? "" : ", ") + graph.segments[i].name;
    }
    out += "rank " + std::to_string(rank) + ", " + std::to_string(flops) +
           " operations per sample: " + names + '\n';
  }
  for (std::size_t e = 0; e < rounds.exchanges.size(); ++e) {
    for (const StateMessage& m : rounds.exchanges[e]) {
      const GraphSegment& s = graph.segments[at(m.segment)];
      out += "after round " + std::to_string(e) + ": " + s.name + " from rank " +
             std::to_string(m.from) + " to rank " + std::to_string(m.to) + ", " +
             std::to_string(s.state) + " elements per sample\n";
    }
  }
  out += std::to_string(elements_crossing(graph, rounds)) +
         " elements per sample cross in forward besides the output, and their gradients in "
         "backward\n";
  return out + speed_text(graph, partition, rounds);
}

}  // namespace stormo::plan
