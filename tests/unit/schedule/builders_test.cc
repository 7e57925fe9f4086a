#include <stormo/schedule/builders.h>

#include <gtest/gtest.h>
#include <stormo/plan/limits.h>

#include <algorithm>
#include <map>
#include <set>

namespace stormo::schedule {
namespace {

using plan::Combine;
using plan::GoalKind;
using plan::Schedule;
using plan::Transfer;

std::int64_t count_transfers(const Schedule& s) {
  std::int64_t count = 0;
  for (const plan::Round& round : s.rounds) count += static_cast<std::int64_t>(round.size());
  return count;
}

TEST(Builders, AreSortedNamedAndDescribed) {
  std::set<std::string_view> names;
  std::pair<std::string_view, std::string_view> last;
  for (const Builder& b : builders()) {
    EXPECT_TRUE(names.insert(b.name).second) << b.name;
    EXPECT_TRUE(b.name.ends_with(to_string(b.goal))) << b.name;
    EXPECT_FALSE(b.description.empty());
    EXPECT_FALSE(b.rounds_formula.empty());
    EXPECT_FALSE(b.bytes_formula.empty());
    EXPECT_LT(last, std::pair(to_string(b.goal), b.name));
    last = {to_string(b.goal), b.name};
  }
  EXPECT_EQ(names.size(), 9u);
}

TEST(Builders, MakeWhatTheirRowSays) {
  for (const Builder& b : builders()) {
    for (int ranks = 1; ranks <= 24; ++ranks) {
      for (int hosts = 1; hosts <= (b.takes_hosts ? ranks : 1); ++hosts) {
        if (ranks % hosts != 0) continue;
        const auto s = b.build(ranks, hosts, ranks - 1);
        ASSERT_TRUE(s.ok()) << s.status().to_string();
        EXPECT_EQ(s->name, b.name);
        EXPECT_EQ(s->goal.kind, b.goal);
        EXPECT_EQ(s->goal.root, b.takes_root ? ranks - 1 : 0);
        EXPECT_EQ(s->ranks, ranks);
        EXPECT_EQ(count_transfers(*s), b.num_transfers(ranks, hosts)) << b.name << " " << ranks;
      }
    }
  }
}

TEST(Builders, RefuseWrongArguments) {
  for (const Builder& b : builders()) {
    for (const int ranks : {-1, 0, plan::kMaxRanks + 1}) {
      EXPECT_EQ(b.build(ranks).status().code(), Code::kInvalidArgument) << b.name;
    }
    EXPECT_EQ(b.build(4, 3).ok(), !b.takes_hosts);
    EXPECT_EQ(b.build(4, 0).ok(), !b.takes_hosts);
    EXPECT_EQ(b.build(4, 1, 4).ok(), !b.takes_root);
    EXPECT_EQ(b.build(4, 1, -1).ok(), !b.takes_root);
  }
}

TEST(Builders, RefuseWhatWouldNotFitIntoMemory) {
  int refused = 0;
  for (const Builder& b : builders()) {
    const bool quadratic = b.num_transfers(plan::kMaxRanks, 1) > plan::kMaxTransfers;
    if (!quadratic) continue;
    ++refused;
    const auto s = b.build(plan::kMaxRanks);
    ASSERT_FALSE(s.ok());
    EXPECT_NE(s.status().message().find("use fewer ranks"), std::string::npos);
  }
  EXPECT_EQ(refused, 7);  // all but star and binomial
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
      if (t.how == Combine::kReduce) out[t.chunk].push_back(t);
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
  const Schedule s = hierarchical_all_reduce(hosts, per_host);
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

}  // namespace
}  // namespace stormo::schedule
