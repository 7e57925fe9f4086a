#include <stormo/schedule/builders.h>

#include <gtest/gtest.h>
#include <stormo/plan/limits.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;
using plan::Schedule;
using plan::Transfer;

std::int64_t count_transfers(const Schedule& s) {
  std::int64_t count = 0;
  for (const plan::Round& round : s.rounds) count += static_cast<std::int64_t>(round.size());
  return count;
}

bool forwards(const Schedule& s) {
  if (s.goal.kind != GoalKind::kAllToAll) return false;
  for (const plan::Round& round : s.rounds) {
    for (const Transfer& t : round) {
      if (t.from != plan::sender(s, t.chunk)) return true;
    }
  }
  return false;
}

TEST(Builders, AreSortedNamedAndDescribed) {
  std::set<std::string_view> names;
  std::pair<std::string_view, std::string_view> last;
  for (const Builder& b : builders()) {
    EXPECT_TRUE(names.insert(b.name).second) << b.name;
    EXPECT_TRUE(b.name.ends_with(to_string(b.goal))) << b.name;
    EXPECT_FALSE(b.description.empty());
    EXPECT_FALSE(b.formulas.rounds.empty());
    EXPECT_FALSE(b.formulas.bytes.empty());
    EXPECT_LT(last, std::pair(to_string(b.goal), b.name));
    last = {to_string(b.goal), b.name};
  }
}

TEST(Builders, MakeWhatTheirRowSays) {
  for (const Builder& b : builders()) {
    for (int ranks = 1; ranks <= 24; ++ranks) {
      for (int hosts = 1; hosts <= (b.takes.hosts ? ranks : 1); ++hosts) {
        if (b.takes.even_hosts && ranks % hosts != 0) continue;
        const int pieces = 1 + ranks % 3;
        const auto s = b.build(ranks, hosts, ranks - 1, pieces);
        ASSERT_TRUE(s.ok()) << s.status().to_string();
        const ScheduleShape shape{ranks, spread_over(ranks, hosts), 0, b.takes.pieces ? pieces : 1};
        EXPECT_EQ(s->name, b.name);
        EXPECT_EQ(s->goal.kind, b.goal);
        EXPECT_EQ(s->goal.root, b.takes.root ? ranks - 1 : 0);
        EXPECT_EQ(s->ranks, ranks);
        EXPECT_EQ(count_transfers(*s), b.size.transfers(shape)) << b.name << " " << ranks;
        EXPECT_EQ(s->chunks, b.size.chunks(shape)) << b.name << " " << ranks;
        EXPECT_TRUE(b.forwards ? ranks <= 3 || forwards(*s) : !forwards(*s)) << b.name;
      }
    }
  }
}

TEST(Builders, RefuseWrongArguments) {
  for (const Builder& b : builders()) {
    for (const int ranks : {-1, 0, plan::kMaxRanks + 1}) {
      EXPECT_EQ(b.build(ranks).status().code(), Code::kInvalidArgument) << b.name;
    }
    EXPECT_EQ(b.build(4, 3).ok(), !b.takes.even_hosts);
    EXPECT_EQ(b.build(4, 5).ok(), !b.takes.hosts);
    EXPECT_EQ(b.build(4, 0).ok(), !b.takes.hosts);
    EXPECT_EQ(b.build(4, 1, 4).ok(), !b.takes.root);
    EXPECT_EQ(b.build(4, 1, -1).ok(), !b.takes.root);
    EXPECT_EQ(b.build(4, 1, 0, 0).ok(), !b.takes.pieces);
    EXPECT_EQ(b.build(4, 1, 0, plan::kMaxChunks + 1).ok(), !b.takes.pieces);
  }
}

TEST(Builders, RefuseWhatWouldNotFitIntoMemory) {
  int refused = 0;
  for (const Builder& b : builders()) {
    const ScheduleShape most{.ranks = plan::kMaxRanks, .hosts = {plan::kMaxRanks}};
    if (b.size.transfers(most) <= plan::kMaxTransfers && b.size.chunks(most) <= plan::kMaxChunks) {
      continue;
    }
    ++refused;
    const auto s = b.build(plan::kMaxRanks);
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.status().message().find("use fewer ranks"), std::string::npos);
  }
  EXPECT_GT(refused, 0);
  EXPECT_TRUE(find_builder("direct_all_to_all").value()->build(256).ok());
  EXPECT_EQ(find_builder("direct_all_to_all").value()->build(257).status().message(),
            "direct_all_to_all: 257 ranks need 66049 chunks, more than the 65536 that one plan may "
            "hold; use fewer ranks or another algorithm");
}

TEST(Builders, AreFoundByNameOrSuggested) {
  ASSERT_TRUE(find_builder("ring_all_reduce").ok());
  EXPECT_EQ((*find_builder("star_all_reduce"))->name, "star_all_reduce");
  EXPECT_EQ(find_builder("ring_allreduce").status().message(),
            "no algorithm is called 'ring_allreduce'; did you mean 'ring_all_reduce'?");
  EXPECT_EQ(find_builder("zz").status().code(), Code::kNotFound);
}

TEST(Ring, TalksToOneNeighbourEachWay) {
  for (int n = 2; n <= 9; ++n) {
    const Schedule s = ring_all_reduce(n);
    EXPECT_EQ(static_cast<int>(s.rounds.size()), 2 * (n - 1));
    for (const plan::Round& round : s.rounds) {
      for (const Transfer& t : round) EXPECT_EQ(t.to, (t.from + 1) % n);
    }
  }
}

TEST(Ring, LastReductionOfAChunkIsAtItsOwner) {
  for (const int n : {2, 3, 5, 8}) {
    const Schedule s = ring_reduce_scatter(n);
    for (const Transfer& t : s.rounds.back()) EXPECT_EQ(t.to, owner(s, t.chunk));
  }
}

/// Where each chunk is reduced and in which order the terms of others arrive there.
std::map<plan::ChunkId, std::vector<Transfer>> reductions(const Schedule& s) {
  std::map<plan::ChunkId, std::vector<Transfer>> out;
  for (const plan::Round& round : s.rounds) {
    for (const Transfer& t : round) {
      if (t.how == ReceiveOp::kReduce) out[t.chunk].push_back(t);
    }
  }
  return out;
}

TEST(DirectAndStar, ReduceAtOneRankInAscendingOrder) {
  for (const int n : {2, 3, 7, 16}) {
    for (const Schedule& s : {direct_reduce_scatter(n), direct_all_reduce(n), star_all_reduce(n)}) {
      const auto by_chunk = reductions(s);
      EXPECT_EQ(static_cast<int>(by_chunk.size()), s.chunks);
      for (const auto& [chunk, transfers] : by_chunk) {
        EXPECT_EQ(static_cast<int>(transfers.size()), n - 1);
        EXPECT_TRUE(std::ranges::is_sorted(transfers, {}, &Transfer::from)) << s.name;
        for (const Transfer& t : transfers) EXPECT_EQ(t.to, owner(s, chunk)) << s.name;
      }
    }
  }
}

TEST(Binomial, StartsAtTheRootAndDoubles) {
  const Schedule s = binomial_broadcast(7, 3);
  std::set<Rank> holders{3};
  for (const plan::Round& round : s.rounds) {
    const std::size_t before = holders.size();
    EXPECT_EQ(round.size(), std::min<std::size_t>(before, 7 - before));
    for (const Transfer& t : round) {
      EXPECT_TRUE(holders.contains(t.from));
      EXPECT_TRUE(holders.insert(t.to).second);
    }
  }
  EXPECT_EQ(holders.size(), 7u);
}

TEST(Hierarchical, LocalRankOwnsItsSliceBetweenHosts) {
  const int hosts = 3, per_host = 4;
  const Schedule s = hierarchical_all_reduce(HostSizes(hosts, per_host));
  EXPECT_EQ(static_cast<int>(s.rounds.size()), 2 + 2 * (hosts - 1));
  int between = 0;
  for (const plan::Round& round : s.rounds) {
    for (const Transfer& t : round) {
      if (t.from / per_host == t.to / per_host) continue;
      ++between;
      const int local = t.from % per_host;
      EXPECT_EQ(t.to % per_host, local);
      EXPECT_GE(t.chunk, local * hosts);
      EXPECT_LT(t.chunk, (local + 1) * hosts);
    }
  }
  EXPECT_EQ(between, per_host * 2 * hosts * (hosts - 1));
}

TEST(Hierarchical, RanksOfASmallerHostLeadSeveralSlices) {
  const Schedule s = hierarchical_all_reduce({3, 1});
  EXPECT_EQ(s.chunks, 2 * 3);
  std::map<Rank, int> sends;
  for (const plan::Round& round : s.rounds) {
    for (const Transfer& t : round) {
      if ((t.from == 3) != (t.to == 3)) ++sends[t.from];
    }
  }
  EXPECT_EQ(sends, (std::map<Rank, int>{{0, 2}, {1, 2}, {2, 2}, {3, 6}}));
}

/// How the value of each chunk that each rank ends with was added up: "((0+1)+2)".
using Additions = std::map<std::pair<Rank, plan::ChunkId>, std::string>;

Additions additions(const Schedule& s) {
  Additions held;
  for (Rank r = 0; r < s.ranks; ++r) {
    for (plan::ChunkId c = 0; c < s.chunks; ++c) held[{r, c}] = std::to_string(r);
  }
  for (const plan::Round& round : s.rounds) {
    std::map<std::pair<Rank, plan::ChunkId>, std::map<Rank, std::string>> terms;
    for (const Transfer& t : round) {
      auto& of_place = terms[{t.to, t.chunk}];
      of_place[t.from] = held[{t.from, t.chunk}];
      if (t.how == ReceiveOp::kReduce) of_place[t.to] = held[{t.to, t.chunk}];
    }
    for (const auto& [place, of_place] : terms) {
      std::string sum;
      for (const auto& [rank, term] : of_place) sum += (sum.empty() ? "" : "+") + term;
      held[place] = of_place.size() > 1 ? "(" + sum + ")" : sum;
    }
  }
  return held;
}

TEST(Canonical, EveryChunkIsAddedUpInOneOrder) {
  const std::map<HostSizes, std::string> orders = {
      {{4}, "(0+1+2+3)"},
      {{1, 1, 1}, "(0+1+2)"},
      {{2, 2}, "((0+1)+(2+3))"},
      {{3, 1, 2}, "((0+1+2)+3+(4+5))"},
  };
  for (const auto& [hosts, order] : orders) {
    for (const auto& [place, sum] : additions(canonical_all_reduce(hosts))) EXPECT_EQ(sum, order);
    const auto scattered = additions(canonical_reduce_scatter(hosts));
    for (Rank r = 0; r < ranks_of(hosts); ++r) EXPECT_EQ(scattered.at({r, r}), order);
  }
  std::set<std::string> of_ring;
  for (const auto& [place, sum] : additions(ring_all_reduce(4))) of_ring.insert(sum);
  EXPECT_EQ(of_ring.size(), 4u) << "the test can tell orders apart";
}

TEST(HostLeaders, HostsAreFilledAsEvenlyAsPossible) {
  EXPECT_EQ(spread_over(7, 3), (HostSizes{3, 2, 2}));
  EXPECT_EQ(spread_over(4, 4), (HostSizes{1, 1, 1, 1}));
  EXPECT_EQ(host_of({3, 2, 2}, 2), 0);
  EXPECT_EQ(host_of({3, 2, 2}, 3), 1);
  EXPECT_EQ(host_of({3, 2, 2}, 6), 2);
  EXPECT_EQ(widest({1, 4, 2}), 4);
  EXPECT_EQ(ranks_of({1, 4, 2}), 7);
}

TEST(HostLeaders, TheRootCarriesAllOfItsHost) {
  const HostLeaders leaders = HostLeaders::of_width({2, 2}, 2, 1).with_root(1);
  const Schedule s = leaders.between_hosts(direct_broadcast(2, 0));
  ASSERT_EQ(s.rounds.size(), 1u);
  EXPECT_EQ(s.rounds[0], (plan::Round{{1, 2, 0, ReceiveOp::kCopy}, {1, 3, 1, ReceiveOp::kCopy}}));
  EXPECT_EQ(s.chunks, 2);
}

TEST(Ring, PiecesFollowOneAnotherInARound) {
  const Schedule s = ring_all_reduce(3, 2);
  EXPECT_EQ(s.chunks, 6);
  ASSERT_EQ(s.rounds.size(), 4u);
  EXPECT_EQ(s.rounds[0][0], (Transfer{0, 1, 4, ReceiveOp::kReduce}));
  EXPECT_EQ(s.rounds[0][1], (Transfer{0, 1, 5, ReceiveOp::kReduce}));
}

TEST(DoubleTree, NoRankIsInteriorInBothTrees) {
  for (int n = 2; n <= 33; ++n) {
    const int pieces = 3;
    const Schedule s = double_tree_all_reduce(n, pieces);
    std::set<Rank> interior[2];
    std::map<std::pair<int, Rank>, int> children;
    for (const plan::Round& round : s.rounds) {
      for (const Transfer& t : round) {
        if (t.how == ReceiveOp::kCopy) continue;
        interior[t.chunk / pieces].insert(t.to);
        const int count = ++children[{t.chunk, t.to}];
        EXPECT_LE(count, 2) << n;
      }
    }
    for (const Rank r : interior[0]) EXPECT_FALSE(interior[1].contains(r)) << n << " " << r;
  }
}

TEST(Swing, PeersAreNearerThanPowersOfTwo) {
  const Schedule s = swing_all_reduce(16);
  const int distances[] = {1, 1, 3, 5};
  for (std::size_t step = 0; step < 4; ++step) {
    for (const Transfer& t : s.rounds[step]) {
      const int right = (t.to - t.from + 16) % 16;
      EXPECT_EQ(std::min(right, 16 - right), distances[step]);
    }
  }
}

TEST(HalvingDoubling, TheLargestMessagesTravelLeast) {
  const Schedule s = halving_doubling_all_reduce(8);
  ASSERT_EQ(s.rounds.size(), 6u);
  for (std::size_t step = 0; step < 6; ++step) {
    const int distance = 1 << (step < 3 ? step : 5 - step);
    for (const Transfer& t : s.rounds[step]) EXPECT_EQ(t.from ^ t.to, distance);
    EXPECT_EQ(static_cast<int>(s.rounds[step].size()), 8 * 4 / distance);
  }
}

TEST(Pat, HalfOfTheDataTravelsOneRank) {
  const Schedule s = pat_all_gather(8);
  ASSERT_EQ(s.rounds.size(), 3u);
  for (std::size_t step = 0; step < 3; ++step) {
    for (const Transfer& t : s.rounds[step]) EXPECT_EQ((t.to - t.from + 8) % 8, 4 >> step);
    EXPECT_EQ(s.rounds[step].size(), 8u << step);
  }
}

TEST(ScatterAllGather, SendsEveryRankEveryChunkOnce) {
  const Schedule s = scatter_all_gather_broadcast(6, 2);
  std::map<std::pair<Rank, int>, int> received;
  for (const plan::Round& round : s.rounds) {
    for (const Transfer& t : round) ++received[{t.to, t.chunk}];
  }
  EXPECT_EQ(received.size(), 5u * 6u);
  for (const auto& [place, times] : received) EXPECT_EQ(times, 1);
}

}  // namespace
}  // namespace stormo::schedule
