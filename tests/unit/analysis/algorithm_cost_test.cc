// The closed formulas of all algorithms whose costs are not in cost_test.cc, for every size.
#include <gtest/gtest.h>
#include <stormo/analysis/schedule/cost.h>
#include <stormo/schedule/builders.h>

#include <algorithm>
#include <bit>
#include <vector>

namespace stormo::analysis {
namespace {

using plan::Schedule;
using std::int64_t;

int ceil_log2(int n) { return std::bit_width(static_cast<unsigned>(n - 1)); }
int floor_log2(int n) { return std::bit_width(static_cast<unsigned>(n)) - 1; }
int64_t bits_below(int n) {
  int64_t bits = 0;
  for (int i = 0; i < n; ++i) bits += std::popcount(static_cast<unsigned>(i));
  return bits;
}

std::vector<int> sizes() {
  std::vector<int> out{64, 100};
  for (int n = 2; n <= 33; ++n) out.push_back(n);
  return out;
}

/// Ranks beyond the largest power of two.
struct Split {
  explicit Split(int n) : core(1 << floor_log2(n)), guests(n - core), folds(guests > 0 ? 1 : 0) {}
  int core, guests, folds;
  int steps() const { return floor_log2(core); }
};

TEST(AlgorithmCost, OneShotSendsEverythingToEverybody) {
  for (const int n : sizes()) {
    const int64_t k = 1000, all = (n - 1) * k;
    const Cost expected{.rounds = 1,
                        .messages = int64_t{n} * (n - 1),
                        .total_bytes = n * all,
                        .max_bytes_sent = all,
                        .max_bytes_received = all,
                        .max_bytes_reduced = all,
                        .busiest = 0};
    EXPECT_EQ(cost(schedule::one_shot_all_reduce(n), k), expected) << n;
  }
}

TEST(AlgorithmCost, RecursiveDoublingSendsAllInEveryStep) {
  for (const int n : sizes()) {
    const Split split(n);
    const int64_t k = 1000, times = split.steps() + split.folds;
    const int64_t messages = int64_t{split.core} * split.steps() + 2 * split.guests;
    const Cost expected{.rounds = split.steps() + 2 * split.folds,
                        .messages = messages,
                        .total_bytes = messages * k,
                        .max_bytes_sent = times * k,
                        .max_bytes_received = times * k,
                        .max_bytes_reduced = times * k,
                        .busiest = 0};
    EXPECT_EQ(cost(schedule::recursive_doubling_all_reduce(n), k), expected) << n;
  }
}

/// B6: 2 log2 n steps and 2(n-1)/n K bytes for powers of two; guests send and receive one K more.
TEST(AlgorithmCost, HalvingDoublingAndSwingMoveTheLeastInLogarithmicRounds) {
  for (const int n : sizes()) {
    const Split split(n);
    const int64_t k = 1000 * split.core, core_sends = 2 * (k - k / split.core);
    const int64_t one_k = split.folds * k;
    const Cost expected{
        .rounds = 2 * split.steps() + 2 * split.folds,
        .messages = 2 * int64_t{split.core} * (split.core - 1 + split.guests),
        .total_bytes = split.core * core_sends + 2 * split.guests * k,
        .max_bytes_sent = core_sends + one_k,
        .max_bytes_received = core_sends + one_k,
        .max_bytes_reduced = core_sends / 2 + one_k,
        .busiest = 0,
    };
    EXPECT_EQ(cost(schedule::halving_doubling_all_reduce(n), k), expected) << n;
    EXPECT_EQ(cost(schedule::swing_all_reduce(n), k), expected) << n;
  }
}

/// B4: 2 ceil(log2 n) rounds, 2(n-1) K bytes in all.
TEST(AlgorithmCost, BinomialAllReduceLoadsItsRoot) {
  for (const int n : sizes()) {
    const int64_t k = 1000, root = ceil_log2(n) * k;
    const Cost expected{.rounds = 2 * ceil_log2(n),
                        .messages = 2 * (n - 1),
                        .total_bytes = 2 * (n - 1) * k,
                        .max_bytes_sent = root,
                        .max_bytes_received = root,
                        .max_bytes_reduced = root,
                        .busiest = 0};
    EXPECT_EQ(cost(schedule::binomial_all_reduce(n), k), expected) << n;
  }
}

/// B4: 2(n-1) K bytes in all, about 2K per rank.
TEST(AlgorithmCost, DoubleTreeSpreadsTheLoad) {
  for (const int n : sizes()) {
    for (const int pieces : {1, 2, 5}) {
      const int64_t k = 2000 * pieces;
      const int64_t most = n >= 4 ? 2 * k : n * k / 2;
      const Cost c = cost(schedule::double_tree_all_reduce(n, pieces), k);
      EXPECT_EQ(c.rounds, 2 * floor_log2(n) + pieces - 1) << n;
      EXPECT_EQ(c.messages, int64_t{4} * pieces * (n - 1));
      EXPECT_EQ(c.total_bytes, 2 * (n - 1) * k);
      EXPECT_EQ(c.max_bytes_sent, most) << n;
      EXPECT_EQ(c.max_bytes_received, most) << n;
      EXPECT_EQ(c.max_bytes_reduced, n >= 3 ? k : k / 2);
    }
  }
}

/// B5: inside a host 2(m-1)/m K, between hosts 2(h-1)/h K/m for each rank.
TEST(AlgorithmCost, TorusAndLeaderFormulasHold) {
  for (int hosts = 1; hosts <= 6; ++hosts) {
    for (int local = 1; local <= 6; ++local) {
      const int n = hosts * local;
      const int64_t k = 420 * n, share = k - k / n;
      const plan::Topology topology = plan::Topology::uniform(hosts, local, {}, {});
      const Schedule torus = schedule::torus_all_reduce(hosts, local);
      EXPECT_EQ(cost(torus, k).rounds, 2 * (local - 1) + 2 * (hosts - 1));
      EXPECT_EQ(cost(torus, k).max_bytes_sent, 2 * share);
      EXPECT_EQ(cost(torus, k).total_bytes, 2 * n * share);
      EXPECT_EQ(inter_host_cost(torus, topology, k).max_rank_bytes_sent,
                2 * (hosts - 1) * (k / hosts / local));

      const Split split(hosts);
      const Schedule leader = schedule::leader_all_reduce(schedule::HostSizes(hosts, local));
      const int64_t between = split.steps() + split.folds;
      EXPECT_EQ(cost(leader, k).rounds, (local > 1 ? 2 : 0) + split.steps() + 2 * split.folds);
      EXPECT_EQ(cost(leader, k).max_bytes_sent, (local - 1 + between) * k);
      EXPECT_EQ(inter_host_cost(leader, topology, k).max_rank_bytes_sent, between * k);
      EXPECT_EQ(inter_host_cost(leader, topology, k).messages,
                int64_t{split.core} * split.steps() + 2 * split.guests);
    }
  }
}

/// B5 for the halves of an all-reduce, on hosts of equal and of different sizes.
TEST(AlgorithmCost, HierarchicalHalvesCrossBetweenHostsOnce) {
  for (const schedule::HostSizes& hosts :
       std::vector<schedule::HostSizes>{{4}, {1, 1, 1}, {3, 3}, {3, 1}, {2, 4, 1}, {5, 5, 5, 5}}) {
    const int n = schedule::ranks_of(hosts), h = static_cast<int>(hosts.size());
    const int64_t k = 60 * n;
    const plan::Topology topology{.host_sizes = hosts};
    for (const bool gathers : {true, false}) {
      const Schedule s = gathers ? schedule::hierarchical_all_gather(hosts)
                                 : schedule::hierarchical_reduce_scatter(hosts);
      EXPECT_EQ(cost(s, k).rounds, h - 1 + (n > h ? 1 : 0));
      EXPECT_EQ(cost(s, k).total_bytes, n * (k - k / n)) << "nothing is sent twice";
      const InterHostCost between = inter_host_cost(s, topology, k);
      EXPECT_EQ(between.total_bytes, (h - 1) * k);
      const int64_t least = *std::min_element(hosts.begin(), hosts.end());
      EXPECT_EQ(between.max_host_bytes_sent, h > 1 ? k - least * (k / n) : 0);
    }
    const Schedule canonical = schedule::canonical_reduce_scatter(hosts);
    EXPECT_EQ(cost(canonical, k).rounds, (h > 1 ? 1 : 0) + (n > h ? 1 : 0));
    EXPECT_EQ(cost(canonical, k).total_bytes, n * (k - k / n));
    EXPECT_EQ(inter_host_cost(canonical, topology, k).total_bytes, (h - 1) * k);
  }
}

/// On hosts of different sizes an all-reduce loads all hosts alike.
TEST(AlgorithmCost, UnevenHostsShareTheWireEvenly) {
  const schedule::HostSizes hosts{3, 1, 2};
  const int64_t k = 3 * 3 * 100;
  const auto between =
      inter_host_cost(schedule::hierarchical_all_reduce(hosts), {.host_sizes = hosts}, k);
  EXPECT_EQ(between.total_bytes, 3 * 2 * 2 * k / 3);
  EXPECT_EQ(between.max_host_bytes_sent, 2 * 2 * k / 3);
}

TEST(AlgorithmCost, HierarchicalBroadcastAndReduceSendKFromHostToHost) {
  for (const schedule::HostSizes& hosts :
       std::vector<schedule::HostSizes>{{4}, {1, 1, 1}, {3, 3}, {3, 1}, {2, 4, 1}}) {
    const int n = schedule::ranks_of(hosts), h = static_cast<int>(hosts.size());
    const plan::Topology topology{.host_sizes = hosts};
    const int64_t k = 12 * schedule::widest(hosts), inside = n > h ? 1 : 0;
    for (const Rank root : {0, n - 1}) {
      for (const int pieces : {1, 3}) {
        for (const Schedule& s : {schedule::hierarchical_broadcast(hosts, root, pieces),
                                  schedule::hierarchical_reduce(hosts, root, pieces)}) {
          EXPECT_EQ(cost(s, k).rounds, (h > 1 ? h - 1 + pieces - 1 : 0) + inside);
          EXPECT_EQ(cost(s, k).total_bytes, (n - 1) * k);
          EXPECT_EQ(inter_host_cost(s, topology, k).total_bytes, (h - 1) * k);
          EXPECT_EQ(inter_host_cost(s, topology, k).max_host_bytes_sent, h > 1 ? k : 0);
        }
      }
      for (const Schedule& s :
           {schedule::leader_broadcast(hosts, root), schedule::leader_reduce(hosts, root)}) {
        EXPECT_EQ(cost(s, k).rounds, (h > 1 ? ceil_log2(h) : 0) + inside);
        EXPECT_EQ(cost(s, k).total_bytes, (n - 1) * k);
        EXPECT_EQ(inter_host_cost(s, topology, k).total_bytes, (h - 1) * k);
      }
    }
  }
}

TEST(AlgorithmCost, AllGathersMoveTheLeastPossible) {
  for (const int n : sizes()) {
    const int64_t k = 1000 * n, share = k - k / n;
    const Cost expected{.rounds = ceil_log2(n),
                        .messages = int64_t{n} * (n - 1),
                        .total_bytes = n * share,
                        .max_bytes_sent = share,
                        .max_bytes_received = share,
                        .max_bytes_reduced = 0,
                        .busiest = 0};
    EXPECT_EQ(cost(schedule::bruck_all_gather(n), k), expected) << n;
    EXPECT_EQ(cost(schedule::pat_all_gather(n), k), expected) << n;
    Cost reduces = expected;
    reduces.max_bytes_reduced = share;
    EXPECT_EQ(cost(schedule::pat_reduce_scatter(n), k), reduces) << n;

    const Split split(n);
    const Cost doubling = cost(schedule::recursive_doubling_all_gather(n), k);
    EXPECT_EQ(doubling.rounds, split.steps() + 2 * split.folds);
    EXPECT_EQ(doubling.total_bytes, n * share);
    EXPECT_EQ(doubling.max_bytes_received, share);
    // rank 0 sends what it has gathered, its guest's included, and at last all to its guest
    int64_t most = split.folds * (n - 1);
    for (int held = 1; held < split.core; held *= 2) most += held + std::min(held, split.guests);
    EXPECT_EQ(doubling.max_bytes_sent, most * (k / n)) << n;
    const Cost halving = cost(schedule::recursive_halving_reduce_scatter(n), k);
    EXPECT_EQ(halving.rounds, doubling.rounds);
    EXPECT_EQ(halving.total_bytes, n * share);
    EXPECT_EQ(halving.max_bytes_sent, share);
    EXPECT_EQ(halving.max_bytes_reduced, doubling.max_bytes_sent);
  }
}

TEST(AlgorithmCost, ReduceLoadsItsRoot) {
  for (const int n : sizes()) {
    const int64_t k = 1000;
    for (const Rank root : {0, n - 1}) {
      const Cost tree = cost(schedule::binomial_reduce(n, root), k);
      EXPECT_EQ(tree.rounds, ceil_log2(n));
      EXPECT_EQ(tree.total_bytes, (n - 1) * k);
      EXPECT_EQ(tree.max_bytes_sent, k);
      EXPECT_EQ(tree.max_bytes_reduced, ceil_log2(n) * k);
      const Cost star = cost(schedule::direct_reduce(n, root), k);
      EXPECT_EQ(star.rounds, 1);
      EXPECT_EQ(star.total_bytes, (n - 1) * k);
      EXPECT_EQ(star.max_bytes_sent, k);
      EXPECT_EQ(star.max_bytes_reduced, (n - 1) * k);
      EXPECT_EQ(star.busiest, n > 2 ? root : 0);
    }
  }
}

TEST(AlgorithmCost, GatherAndScatterMirrorEachOther) {
  for (const int n : sizes()) {
    const int64_t k = 1000 * n, share = k - k / n;
    for (const Rank root : {0, n / 2}) {
      const Cost scatter = cost(schedule::binomial_scatter(n, root), k);
      EXPECT_EQ(scatter.rounds, ceil_log2(n));
      EXPECT_EQ(scatter.total_bytes, bits_below(n) * (k / n));
      EXPECT_EQ(scatter.max_bytes_sent, share);
      // the first to receive gets what lies beyond the half, the second half of that half
      const int half = 1 << (ceil_log2(n) - 1);
      EXPECT_EQ(scatter.max_bytes_received, std::max(n - half, half / 2) * (k / n)) << n;
      const Cost gather = cost(schedule::binomial_gather(n, root), k);
      EXPECT_EQ(gather.rounds, scatter.rounds);
      EXPECT_EQ(gather.total_bytes, scatter.total_bytes);
      EXPECT_EQ(gather.max_bytes_received, scatter.max_bytes_sent);
      EXPECT_EQ(gather.max_bytes_sent, scatter.max_bytes_received);
      for (const bool gathers : {false, true}) {
        const Cost direct =
            cost(gathers ? schedule::direct_gather(n, root) : schedule::direct_scatter(n, root), k);
        EXPECT_EQ(direct.rounds, 1);
        EXPECT_EQ(direct.total_bytes, share);
        EXPECT_EQ(direct.max_bytes_sent, gathers ? k / n : share);
        EXPECT_EQ(direct.max_bytes_received, gathers ? share : k / n);
      }
    }
  }
}

TEST(AlgorithmCost, AReduceThatLeavesNoRankIdle) {
  for (const int n : sizes()) {
    const int64_t k = 1000 * n;
    const Cost c = cost(schedule::scatter_gather_reduce(n, n - 1), k);
    EXPECT_EQ(c.rounds, 2);
    EXPECT_EQ(c.total_bytes, (n - 1) * k + (n - 1) * (k / n));
    EXPECT_EQ(c.max_bytes_sent, k) << "the root sends less";
    EXPECT_EQ(c.max_bytes_reduced, k - k / n) << "no rank reduces more than another";
  }
}

TEST(AlgorithmCost, Broadcasts) {
  for (const int n : sizes()) {
    const int64_t k = 1000 * n;
    for (const Rank root : {0, n - 1}) {
      const Cost direct = cost(schedule::direct_broadcast(n, root), k);
      EXPECT_EQ(direct.rounds, 1);
      EXPECT_EQ(direct.max_bytes_sent, (n - 1) * k);
      for (const int pieces : {1, 4, 10}) {
        const Cost chain = cost(schedule::chain_broadcast(n, root, pieces), k);
        EXPECT_EQ(chain.rounds, n - 1 + pieces - 1);
        EXPECT_EQ(chain.messages, int64_t{pieces} * (n - 1));
        EXPECT_EQ(chain.total_bytes, (n - 1) * k);
        EXPECT_EQ(chain.max_bytes_sent, k);
        EXPECT_EQ(chain.max_bytes_received, k);
      }
      const Cost parts = cost(schedule::scatter_all_gather_broadcast(n, root), k);
      EXPECT_EQ(parts.rounds, ceil_log2(n) + n - 1);
      EXPECT_EQ(parts.total_bytes, (n - 1) * k);
      EXPECT_EQ(parts.max_bytes_sent, 2 * (k - k / n)) << n;
      EXPECT_EQ(parts.max_bytes_received, k);
    }
  }
}

TEST(AlgorithmCost, AllToAlls) {
  for (const int n : sizes()) {
    const int64_t block = 10, k = block * n * n;
    for (const bool at_once : {true, false}) {
      const Cost expected{.rounds = at_once ? 1 : n - 1,
                          .messages = int64_t{n} * (n - 1),
                          .total_bytes = n * (n - 1) * block,
                          .max_bytes_sent = (n - 1) * block,
                          .max_bytes_received = (n - 1) * block,
                          .max_bytes_reduced = 0,
                          .busiest = 0};
      EXPECT_EQ(
          cost(at_once ? schedule::direct_all_to_all(n) : schedule::pairwise_all_to_all(n), k),
          expected);
    }
    const Cost bruck = cost(schedule::bruck_all_to_all(n), k);
    EXPECT_EQ(bruck.rounds, ceil_log2(n));
    EXPECT_EQ(bruck.messages, n * bits_below(n));
    EXPECT_EQ(bruck.max_bytes_sent, bits_below(n) * block);
    EXPECT_EQ(bruck.max_bytes_received, bits_below(n) * block);
  }
}

TEST(AlgorithmCost, Scans) {
  for (const int n : sizes()) {
    const int64_t k = 1000;
    const Cost tree = cost(schedule::brent_kung_scan(n), k);
    EXPECT_EQ(tree.rounds, floor_log2(n) + (n >= 3 ? floor_log2(2 * n / 3) : 0)) << n;
    EXPECT_EQ(tree.messages, 2 * n - 1 - floor_log2(n) - std::popcount(unsigned(n))) << n;
    EXPECT_EQ(tree.max_bytes_sent, floor_log2(n) * k) << n;
    const Cost chain = cost(schedule::chain_scan(n, 4), k);
    EXPECT_EQ(chain.rounds, n - 1 + 3);
    EXPECT_EQ(chain.total_bytes, (n - 1) * k);
    EXPECT_EQ(chain.max_bytes_reduced, k);
  }
}

/// Pieces change the messages, not the bytes.
TEST(AlgorithmCost, PiecesOfARingCostNothingElse) {
  for (const int n : sizes()) {
    const int64_t k = 12 * n;
    Cost expected = cost(schedule::ring_all_reduce(n), k);
    expected.messages *= 3;
    EXPECT_EQ(cost(schedule::ring_all_reduce(n, 3), k), expected);
  }
}

}  // namespace
}  // namespace stormo::analysis
