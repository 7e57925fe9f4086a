// Idea: start from a partition into consecutive segments or a random one. In a pass each segment
// moves once, always the one whose move is the best of all, even if it makes things worse; then
// the pass is taken back to where it was best. Passes follow until one finds nothing better.
// Source: see partition_graph.h.
#include <stormo/parallel/search/partition_graph.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/base/index.h>
#include <stormo/base/rng.h>

namespace stormo::parallel {
namespace {

using plan::GraphPartition;
using plan::GraphRounds;
using plan::GraphSegment;
using plan::kGraphInput;
using plan::SegmentGraph;

/// How bad a partition is: the first that differs counts.
struct Score {
  std::int64_t too_many = 0;  // operations above the most of a rank
  std::int64_t crossing = 0;  // elements per sample
  auto operator<=>(const Score&) const = default;
};

class Search {
 public:
  Search(const SegmentGraph& graph, int ranks, double imbalance)
      : graph_(graph), ranks_(ranks), readers_(graph.segments.size()), seen_(at(ranks)) {
    std::int64_t all = 0;
    for (const GraphSegment& s : graph.segments) all += s.flops_per_sample;
    for (std::size_t i = 0; i < graph.segments.size(); ++i) {
      const GraphSegment& s = graph.segments[i];
      weights_.push_back(all == 0 ? 1 : s.flops_per_sample);
      for (const int r : s.reads) {
        if (r != kGraphInput) readers_[at(r)].push_back(static_cast<int>(i));
      }
    }
    if (all == 0) all = std::ssize(weights_);
    const double part = (1 + imbalance) * static_cast<double>(all) / ranks;
    most_ = std::max(static_cast<std::int64_t>(std::ceil(part)), std::ranges::max(weights_));
  }

  /// From here on these are the owners. No rank may be without a segment.
  void start(std::vector<int> owners) {
    owners_ = std::move(owners);
    loads_.assign(at(ranks_), 0);
    counts_.assign(at(ranks_), 0);
    score_ = {};
    for (std::size_t i = 0; i < owners_.size(); ++i) {
      loads_[at(owners_[i])] += weights_[i];
      ++counts_[at(owners_[i])];
      score_.crossing += crossing(static_cast<int>(i));
    }
    for (const std::int64_t load : loads_) score_.too_many += above(load);
  }

  /// Passes until one finds nothing better.
  void improve() {
    while (pass()) {
    }
  }

  const std::vector<int>& owners() const { return owners_; }
  const std::vector<std::int64_t>& weights() const { return weights_; }
  const Score& score() const { return score_; }

 private:
  struct Move {
    int segment = 0, to = 0;
    Score after;
  };

  std::int64_t above(std::int64_t load) const { return std::max<std::int64_t>(0, load - most_); }

  /// Elements of one state that cross.
  std::int64_t crossing(int segment) const {
    std::int64_t ranks = 0;
    seen_[at(owners_[at(segment)])] = ++looks_;
    for (const int r : readers_[at(segment)]) {
      if (std::exchange(seen_[at(owners_[at(r)])], looks_) != looks_) ++ranks;
    }
    return ranks * graph_.segments[at(segment)].state;
  }

  /// Of the states that a segment reads and of its own.
  std::int64_t crossing_around(int segment) const {
    std::int64_t out = crossing(segment);
    for (const int r : graph_.segments[at(segment)].reads) {
      if (r != kGraphInput) out += crossing(r);
    }
    return out;
  }

  Score score_after(int segment, int to) {
    const int from = owners_[at(segment)];
    const std::int64_t weight = weights_[at(segment)];
    Score out = score_;
    out.too_many += above(loads_[at(from)] - weight) - above(loads_[at(from)]) +
                    above(loads_[at(to)] + weight) - above(loads_[at(to)]);
    out.crossing -= crossing_around(segment);
    owners_[at(segment)] = to;
    out.crossing += crossing_around(segment);
    owners_[at(segment)] = from;
    return out;
  }

  void move(const Move& m) {
    const int from = std::exchange(owners_[at(m.segment)], m.to);
    loads_[at(from)] -= weights_[at(m.segment)];
    loads_[at(m.to)] += weights_[at(m.segment)];
    --counts_[at(from)];
    ++counts_[at(m.to)];
    score_ = m.after;
  }

  std::optional<Move> best_move(const std::vector<bool>& has_moved) {
    std::optional<Move> best;
    for (int s = 0; s < std::ssize(owners_); ++s) {
      if (has_moved[at(s)] || counts_[at(owners_[at(s)])] == 1) continue;
      for (int to = 0; to < ranks_; ++to) {
        if (to == owners_[at(s)]) continue;
        const Score after = score_after(s, to);
        if (!best || after < best->after) best = Move{s, to, after};
      }
    }
    return best;
  }

  bool pass() {
    const Score before = score_;
    Score least = score_;
    std::vector<int> best = owners_;
    std::vector<bool> has_moved(owners_.size());
    while (const std::optional<Move> m = best_move(has_moved)) {
      move(*m);
      has_moved[at(m->segment)] = true;
      if (score_ < least) {
        least = score_;
        best = owners_;
      }
    }
    start(std::move(best));
    return least < before;
  }

  const SegmentGraph& graph_;
  int ranks_;
  std::vector<std::vector<int>> readers_;  // by segment: those that read its state
  std::vector<std::int64_t> weights_;      // operations
  std::int64_t most_ = 0;                  // operations that a rank may have
  std::vector<int> owners_;
  std::vector<std::int64_t> loads_;  // by rank
  std::vector<int> counts_;          // by rank: segments
  Score score_;
  // of crossing(): in which call it saw each rank
  mutable std::vector<std::int64_t> seen_;
  mutable std::int64_t looks_ = 0;
};

/// Consecutive segments, each rank with about as many operations.
std::vector<int> consecutive(const std::vector<std::int64_t>& weights, int ranks) {
  std::int64_t all = 0, before = 0;
  for (const std::int64_t w : weights) all += w;
  std::vector<int> out;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    const double middle = static_cast<double>(before) + static_cast<double>(weights[i]) / 2;
    int rank = std::min(ranks - 1, static_cast<int>(middle * ranks / static_cast<double>(all)));
    // every rank gets a segment: none is left out, and enough are left for those behind
    const int last = out.empty() ? -1 : out.back();
    rank = std::clamp(rank, std::max(last, 0), last + 1);
    rank = std::max(rank, ranks - static_cast<int>(weights.size() - i));
    out.push_back(rank);
    before += weights[i];
  }
  return out;
}

/// Any owner for each segment, but every rank gets one.
std::vector<int> random_owners(Rng& rng, std::size_t segments, int ranks) {
  std::vector<std::int64_t> order(segments);
  permutation(rng, order);
  std::vector<int> out(segments);
  for (std::size_t i = 0; i < segments; ++i) {
    const bool is_first = i < at(ranks);
    out[static_cast<std::size_t>(order[i])] =
        is_first ? static_cast<int>(i)
                 : static_cast<int>(rng.below(static_cast<std::uint64_t>(ranks)));
  }
  return out;
}

/// Operations of the slowest rank of each round, added up.
std::int64_t longest(const SegmentGraph& graph, const GraphPartition& partition,
                     const std::vector<std::int64_t>& weights) {
  const GraphRounds rounds = rounds_of(graph, partition);
  std::vector<std::vector<std::int64_t>> loads(at(rounds.count()),
                                               std::vector<std::int64_t>(at(partition.ranks)));
  for (std::size_t i = 0; i < weights.size(); ++i) {
    loads[at(rounds.rounds[i])][at(partition.owners[i])] += weights[i];
  }
  std::int64_t out = 0;
  for (const auto& of_ranks : loads) out += std::ranges::max(of_ranks);
  return out;
}

Status check_options(const SegmentGraph& graph, int ranks, const PartitionOptions& o) {
  STORMO_RETURN_IF_ERROR(check(graph));
  if (ranks < 1 || ranks > std::ssize(graph.segments)) {
    return invalid_argument("partition of a graph: " + std::to_string(graph.segments.size()) +
                            " segments cannot be divided over " + std::to_string(ranks) +
                            " ranks; give 1 to " + std::to_string(graph.segments.size()));
  }
  if (!(o.imbalance >= 0 && o.imbalance <= ranks) || o.tries < 1) {
    return invalid_argument(
        "partition of a graph: give an imbalance from 0 to the number of "
        "ranks, and at least 1 try");
  }
  return {};
}

}  // namespace

Result<GraphPartition> partition(const SegmentGraph& graph, int ranks,
                                 const PartitionOptions& options) {
  STORMO_RETURN_IF_ERROR(check_options(graph, ranks, options));
  Search search(graph, ranks, options.imbalance);
  Rng rng(options.seed, "partition of a graph");
  GraphPartition best{.ranks = ranks, .owners = {}};
  std::tuple<Score, std::int64_t> least;
  for (int t = 0; t < options.tries; ++t) {
    search.start(t == 0 ? consecutive(search.weights(), ranks)
                        : random_owners(rng, graph.segments.size(), ranks));
    search.improve();
    const GraphPartition found{.ranks = ranks, .owners = search.owners()};
    const std::tuple now(search.score(), longest(graph, found, search.weights()));
    if (best.owners.empty() || now < least) std::tie(best, least) = std::tuple(found, now);
  }
  return best;
}

}  // namespace stormo::parallel
