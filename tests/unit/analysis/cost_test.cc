#include <stormo/analysis/schedule/cost.h>

#include <gtest/gtest.h>
#include <stormo/schedule/builders.h>

#include <bit>

namespace stormo::analysis {
namespace {

using std::int64_t;

int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }

/// B2: 2 rounds and 2(n-1)/n K by direct exchange. B3: 2(n-1) rounds and as many bytes by a ring.
TEST(Cost, RingsAndDirectMoveTheLeastPossible) {
  for (int n = 1; n <= 33; ++n) {
    const int64_t k = 1000 * n;
    const int64_t share = (n - 1) * (k / n);
    struct Row {
      plan::Schedule s;
      int rounds, phases;
      bool reduces;
    };
    const int once = n > 1 ? 1 : 0;
    const Row rows[] = {{schedule::ring_reduce_scatter(n), n - 1, 1, true},
                        {schedule::ring_all_gather(n), n - 1, 1, false},
                        {schedule::ring_all_reduce(n), 2 * (n - 1), 2, true},
                        {schedule::direct_reduce_scatter(n), once, 1, true},
                        {schedule::direct_all_gather(n), once, 1, false},
                        {schedule::direct_all_reduce(n), 2 * once, 2, true}};
    for (const Row& row : rows) {
      const Cost expected{.rounds = row.rounds,
                          .messages = int64_t{row.phases} * n * (n - 1),
                          .total_bytes = row.phases * n * share,
                          .max_bytes_sent = row.phases * share,
                          .max_bytes_received = row.phases * share,
                          .max_bytes_reduced = row.reduces ? share : 0,
                          .busiest = 0};
      EXPECT_EQ(cost(row.s, k), expected) << row.s.name << " " << n;
      EXPECT_EQ(cost(row.s, k / 4 * 4, 1).total_bytes, cost(row.s, k / 4, 4).total_bytes);
    }
  }
}

/// B1: the root sends and receives (n-1) K.
TEST(Cost, StarLoadsItsRoot) {
  for (int n = 1; n <= 33; ++n) {
    const int64_t k = 1000, all = (n - 1) * k;
    const Cost expected{.rounds = n > 1 ? 2 : 0,
                        .messages = 2 * (n - 1),
                        .total_bytes = 2 * all,
                        .max_bytes_sent = all,
                        .max_bytes_received = all,
                        .max_bytes_reduced = all,
                        .busiest = 0};
    EXPECT_EQ(cost(schedule::star_all_reduce(n), k), expected) << n;
  }
}

TEST(Cost, BinomialTakesLogarithmicRounds) {
  for (int n = 1; n <= 33; ++n) {
    const Rank root = n - 1;
    const Cost c = cost(schedule::binomial_broadcast(n, root), 1000);
    EXPECT_EQ(c.rounds, ceil_log2(n));
    EXPECT_EQ(c.messages, n - 1);
    EXPECT_EQ(c.total_bytes, (n - 1) * 1000);
    EXPECT_EQ(c.max_bytes_sent, ceil_log2(n) * 1000);
    EXPECT_EQ(c.max_bytes_received, n > 1 ? 1000 : 0);
    EXPECT_EQ(c.max_bytes_reduced, 0);
    // others may move as much as the root; of equals the lowest counts
    EXPECT_EQ(cost(schedule::binomial_broadcast(n, 0), 1000).busiest, 0);
  }
}

/// B5: 2(m-1)/m K inside a host, 2(h-1)/h K/m between hosts for each rank.
TEST(Cost, HierarchySendsLittleBetweenHosts) {
  for (int hosts = 1; hosts <= 6; ++hosts) {
    for (int local = 1; local <= 6; ++local) {
      const int64_t k = 420 * hosts * local;
      const plan::Schedule s = schedule::hierarchical_all_reduce(schedule::HostSizes(hosts, local));
      const int64_t inside = 2 * (local - 1) * (k / local);
      const int64_t between = 2 * (hosts - 1) * (k / hosts / local);
      const Cost c = cost(s, k);
      EXPECT_EQ(c.rounds, (local > 1 ? 2 : 0) + 2 * (hosts - 1));
      EXPECT_EQ(c.max_bytes_sent, inside + between);
      EXPECT_EQ(c.max_bytes_received, inside + between);
      EXPECT_EQ(c.total_bytes, hosts * local * (inside + between));
      const plan::Topology topology = plan::Topology::uniform(hosts, local, {}, {});
      const InterHostCost expected{.messages = int64_t{local} * 2 * hosts * (hosts - 1),
                                   .total_bytes = hosts * local * between,
                                   .max_host_bytes_sent = local * between,
                                   .max_host_bytes_received = local * between,
                                   .max_rank_bytes_sent = between};
      EXPECT_EQ(inter_host_cost(s, topology, k), expected) << hosts << "x" << local;
      const auto canonical = schedule::canonical_all_reduce(schedule::HostSizes(hosts, local));
      Cost same = c;
      same.rounds = (local > 1 ? 2 : 0) + (hosts > 1 ? 2 : 0);
      EXPECT_EQ(cost(canonical, k), same);
      EXPECT_EQ(inter_host_cost(canonical, topology, k), expected) << hosts << "x" << local;
    }
  }
}

TEST(Cost, AFlatRingLoadsOneRankPerHostWithAllItsTraffic) {
  const plan::Topology topology = plan::Topology::uniform(2, 2, {}, {});
  const InterHostCost c = inter_host_cost(schedule::ring_all_reduce(4), topology, 4000);
  EXPECT_EQ(c.max_host_bytes_sent, 2 * 3 * 1000);
  EXPECT_EQ(c.max_rank_bytes_sent, 2 * 3 * 1000);
  EXPECT_EQ(c.total_bytes, 2 * 2 * 3 * 1000);
}

TEST(Cost, RaggedChunksDifferByAtMostOneElement) {
  for (int n = 2; n <= 9; ++n) {
    for (const int64_t count : {int64_t{0}, int64_t{1}, int64_t{n - 1}, int64_t{100 * n + n / 2}}) {
      const Cost c = cost(schedule::ring_all_reduce(n), count, 4);
      EXPECT_EQ(c.total_bytes, 2 * (n - 1) * count * 4);  // every chunk crosses 2(n-1) links
      EXPECT_LE(c.max_bytes_sent, 2 * (n - 1) * (count / n + 1) * 4);
      EXPECT_GE(c.max_bytes_sent * n, c.total_bytes);
    }
  }
}

TEST(CostDeathTest, TransfersOutOfRangeAreBugs) {
  plan::Schedule s = schedule::ring_all_reduce(2);
  s.rounds[0][0].to = 2;
  EXPECT_DEATH((void)cost(s, 8), "transfer out of range");
  EXPECT_DEATH((void)inter_host_cost(schedule::ring_all_reduce(2), plan::Topology{}, 8),
               "another number of ranks");
}

}  // namespace
}  // namespace stormo::analysis
