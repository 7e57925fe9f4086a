// Graphs of segments: what crosses between ranks, and the partition that is found.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/parallel/search/partition_graph.h>
#include <stormo/plan/model/segment_graph.h>

namespace stormo::parallel {
namespace {

using plan::GraphPartition;
using plan::GraphRounds;
using plan::GraphSegment;
using plan::kGraphInput;
using plan::SegmentGraph;
using plan::StateCrossing;
using plan::StateMessage;

/// "stem" is read by "left" and "right", both by "join". "right" reads the input, too.
SegmentGraph diamond() {
  return {{{.name = "stem", .reads = {kGraphInput}, .state = 8, .flops_per_sample = 100},
           {.name = "left", .reads = {0}, .state = 4, .flops_per_sample = 200},
           {.name = "right", .reads = {0, kGraphInput}, .state = 2, .flops_per_sample = 200},
           {.name = "join", .reads = {1, 2}, .state = 10, .flops_per_sample = 50}}};
}

SegmentGraph random_graph(Rng& rng, int segments) {
  SegmentGraph out;
  for (int i = 0; i < segments; ++i) {
    GraphSegment s{.name = "s" + std::to_string(i),
                   .reads = {i - 1},  // somebody reads each
                   .state = static_cast<std::int64_t>(rng.below(20)) + 1,
                   .flops_per_sample = static_cast<std::int64_t>(rng.below(100)) + 1};
    for (int r = 0; r + 1 < i; ++r) {
      if (rng.below(3) == 0) s.reads.push_back(r);
    }
    out.segments.push_back(std::move(s));
  }
  return out;
}

/// Elements that cross, by going over all edges.
std::int64_t by_edges(const SegmentGraph& g, const std::vector<int>& owners) {
  std::set<std::pair<int, int>> seen;  // state, reader's rank
  std::int64_t out = 0;
  for (std::size_t i = 0; i < g.segments.size(); ++i) {
    for (const int r : g.segments[i].reads) {
      if (r < 0 || owners[static_cast<std::size_t>(r)] == owners[i]) continue;
      if (seen.insert({r, owners[i]}).second) {
        out += g.segments[static_cast<std::size_t>(r)].state;
      }
    }
  }
  return out;
}

TEST(SegmentGraph, SaysWhatCrossesWhen) {
  const SegmentGraph g = diamond();
  const GraphPartition p{.ranks = 2, .owners = {0, 0, 1, 0}};
  ASSERT_TRUE(check(g, p).ok());
  const GraphRounds r = rounds_of(g, p);
  EXPECT_EQ(r.rounds, (std::vector{0, 0, 1, 2}));
  EXPECT_EQ(r.exchanges,
            (std::vector<std::vector<StateMessage>>{{{0, 0, 1}}, {{2, 1, 0}}, {{3, 0, 1}}}));
  EXPECT_EQ(crossings_of(g, r),
            (std::vector<std::vector<StateCrossing>>{{{0, 1, 8}}, {{1, 0, 2}}, {{0, 1, 10}}}));
  EXPECT_EQ(elements_crossing(g, r), 10);
  EXPECT_EQ(describe(g, p),
            "rank 0, 350 operations per sample: stem, left, join\n"
            "rank 1, 200 operations per sample: right\n"
            "after round 0: stem from rank 0 to rank 1, 8 elements per sample\n"
            "after round 1: right from rank 1 to rank 0, 2 elements per sample\n"
            "after round 2: join from rank 0 to rank 1, 10 elements per sample\n"
            "10 elements per sample cross in forward besides the output, and their gradients in "
            "backward\n"
            "at most 1.00 times as fast as one rank, in 3 round(s)\n");
}

TEST(SegmentGraph, OneRankSendsNothing) {
  const SegmentGraph g = diamond();
  const GraphRounds r = rounds_of(g, {.ranks = 1, .owners = {0, 0, 0, 0}});
  EXPECT_EQ(r.count(), 1);
  EXPECT_TRUE(crossings_of(g, r).front().empty());
}

TEST(SegmentGraph, AStateGoesOnceToARankHoweverManyReadIt) {
  Rng rng(1, "graphs");
  for (int i = 0; i < 100; ++i) {
    const SegmentGraph g = random_graph(rng, 10);
    GraphPartition p{.ranks = 3, .owners = {}};
    for (int s = 0; s < 10; ++s) p.owners.push_back(s < 3 ? s : static_cast<int>(rng.below(3)));
    const GraphRounds r = rounds_of(g, p);
    EXPECT_EQ(elements_crossing(g, r), by_edges(g, p.owners));
    for (const auto& exchange : r.exchanges) EXPECT_FALSE(exchange.empty());
    // what a segment reads is there before its round
    for (std::size_t s = 0; s < g.segments.size(); ++s) {
      for (const int read : g.segments[s].reads) {
        if (read < 0) continue;
        const bool crosses = p.owners[static_cast<std::size_t>(read)] != p.owners[s];
        EXPECT_GE(r.rounds[s], r.rounds[static_cast<std::size_t>(read)] + (crosses ? 1 : 0));
      }
    }
  }
}

/// The best of all partitions in which no rank has more than `most` operations; -1: there is none.
std::int64_t least_crossing(const SegmentGraph& g, int ranks, std::int64_t most) {
  std::int64_t least = -1;
  std::vector<int> owners(g.segments.size());
  for (;;) {
    std::vector<std::int64_t> loads(static_cast<std::size_t>(ranks));
    for (std::size_t i = 0; i < owners.size(); ++i) {
      loads[static_cast<std::size_t>(owners[i])] += g.segments[i].flops_per_sample;
    }
    bool fits = true;
    for (const std::int64_t load : loads) fits = fits && load > 0 && load <= most;
    const std::int64_t now = fits ? by_edges(g, owners) : -1;
    if (fits && (least < 0 || now < least)) least = now;
    std::size_t digit = 0;
    while (digit < owners.size() && ++owners[digit] == ranks) owners[digit++] = 0;
    if (digit == owners.size()) return least;
  }
}

TEST(PartitionGraph, FindsTheBestOfSmallGraphs) {
  Rng rng(7, "graphs");
  int found = 0;
  for (int i = 0; i < 40; ++i) {
    const int ranks = 2 + i % 2;
    const SegmentGraph g = random_graph(rng, 8);
    std::int64_t all = 0, largest = 0;
    for (const GraphSegment& s : g.segments) {
      all += s.flops_per_sample;
      largest = std::max(largest, s.flops_per_sample);
    }
    const std::int64_t most = std::max((all * 12 + ranks * 10 - 1) / (ranks * 10), largest);
    const std::int64_t best = least_crossing(g, ranks, most);
    const GraphPartition p = partition(g, ranks, {.imbalance = 0.2, .tries = 64}).take_or_throw();
    EXPECT_TRUE(check(g, p).ok());
    if (best < 0) continue;  // no partition is even enough
    ++found;
    EXPECT_EQ(by_edges(g, p.owners), best) << "graph " << i;
  }
  EXPECT_GE(found, 20);
}

TEST(PartitionGraph, KeepsBranchesTogether) {
  // four towers of three segments, joined at the end
  SegmentGraph g;
  for (int tower = 0; tower < 4; ++tower) {
    for (int layer = 0; layer < 3; ++layer) {
      const int before = static_cast<int>(g.segments.size()) - 1;
      g.segments.push_back({.name = std::to_string(tower) + "." + std::to_string(layer),
                            .reads = {layer == 0 ? kGraphInput : before},
                            .state = layer == 2 ? 4 : 64,
                            .flops_per_sample = 1000});
    }
  }
  g.segments.push_back(
      {.name = "join", .reads = {2, 5, 8, 11}, .state = 10, .flops_per_sample = 10});
  for (const int ranks : {2, 4}) {
    const GraphPartition p = partition(g, ranks).take_or_throw();
    const GraphRounds r = rounds_of(g, p);
    EXPECT_EQ(elements_crossing(g, r), ranks == 2 ? 8 : 12);
    EXPECT_EQ(r.count(), 2);
    EXPECT_EQ(partition(g, ranks)->owners, p.owners);  // the same again
  }
}

TEST(PartitionGraph, CountsSegmentsWhereNoOperationsAreKnown) {
  SegmentGraph g;
  for (int i = 0; i < 12; ++i) g.segments.push_back({std::to_string(i), {i - 1}, 5, 0});
  const GraphPartition p = partition(g, 3).take_or_throw();
  for (int rank = 0; rank < 3; ++rank) EXPECT_EQ(std::ranges::count(p.owners, rank), 4);
  EXPECT_EQ(by_edges(g, p.owners), 10);
}

TEST(PartitionGraph, ALargeSegmentHasARankOfItsOwn) {
  SegmentGraph g = diamond();
  g.segments[1].flops_per_sample = 1'000'000;
  const GraphPartition p = partition(g, 2).take_or_throw();
  EXPECT_EQ(std::ranges::count(p.owners, p.owners[1]), 1);
}

TEST(PartitionGraph, RefusesWithAllReasons) {
  SegmentGraph g = diamond();
  g.segments[1].reads = {3, 3};
  g.segments[2].name = "left";
  g.segments[3].state = 0;
  const std::string why = check(g).message();
  for (const char* part : {"'left' reads segment 3, no earlier one", "reads a state twice",
                           "needs a name of its own", "'join' has a state of no elements"}) {
    EXPECT_NE(why.find(part), std::string::npos) << why;
  }
  EXPECT_FALSE(partition(g, 2).ok());
  SegmentGraph unread = diamond();
  unread.segments[3].reads = {1};
  EXPECT_NE(check(unread).message().find("no segment reads 'right'"), std::string::npos);
  EXPECT_NE(check(SegmentGraph{}).message().find("no segments"), std::string::npos);
  for (const int ranks : {0, 5}) {
    EXPECT_NE(partition(diamond(), ranks).status().message().find("give 1 to 4"),
              std::string::npos);
  }
  EXPECT_FALSE(partition(diamond(), 2, {.imbalance = -1}).ok());
  EXPECT_FALSE(partition(diamond(), 2, {.tries = 0}).ok());
  const auto why_not = [](std::vector<int> owners) {
    return check(diamond(), {.ranks = 2, .owners = std::move(owners)}).message();
  };
  EXPECT_NE(why_not({0, 0, 0}).find("3 owners are given for 4 segments"), std::string::npos);
  EXPECT_NE(why_not({0, 0, 2, 1}).find("rank 2 is none of the 2"), std::string::npos);
  EXPECT_NE(why_not({0, 0, 0, 0}).find("1 of 2 ranks compute no segment"), std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
