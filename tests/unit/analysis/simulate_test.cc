#include <stormo/analysis/schedule/simulate.h>

#include <gtest/gtest.h>
#include <stormo/schedule/builders.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <map>

namespace stormo::analysis {
namespace {

using plan::Schedule;
using plan::Topology;

constexpr double kAlpha = 1e-5, kBeta = 1e-9, kGamma = 1e-10;
constexpr plan::Link kLink{kAlpha, kBeta};

Topology one_host(int ranks) { return Topology::uniform(1, ranks, kLink, {1, 1}, kGamma); }
Topology one_rank_hosts(int hosts) { return Topology::uniform(hosts, 1, {1, 1}, kLink, kGamma); }

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

double simulated(const Schedule& s, const Topology& t, std::int64_t bytes) {
  ManualClock clock;
  return seconds(simulate(s, t, bytes, clock).duration);
}

/// The clock counts nanoseconds.
constexpr double kTick = 2e-9;

TEST(Simulate, MeetsTheClosedFormulas) {
  for (const int n : {1, 2, 3, 4, 5, 7, 8, 13, 16, 33}) {
    const std::int64_t bytes = 100'000 * n;
    const double k = static_cast<double>(bytes), chunk = k / n;
    const double step = kAlpha + chunk * kBeta;
    const double reduce = chunk * kGamma;
    const double all = kAlpha + k * kBeta;
    const int others = n - 1;
    const double once = n > 1 ? 1 : 0;
    struct Row {
      Schedule s;
      double expected;
    };
    const Row rows[] = {
        {schedule::ring_reduce_scatter(n), others * (step + reduce)},
        {schedule::ring_all_gather(n), others * step},
        {schedule::ring_all_reduce(n), others * (2 * step + reduce)},
        // reductions are faster than the link: all but the last hide behind the next transfer
        {schedule::direct_reduce_scatter(n), others * step + once * reduce},
        {schedule::direct_all_gather(n), others * step},
        {schedule::direct_all_reduce(n), 2 * others * step + once * reduce},
        {schedule::star_all_reduce(n), 2 * others * all + once * k * kGamma},
        {schedule::binomial_broadcast(n, n / 2), std::bit_width(unsigned(others)) * all},
    };
    for (const Row& row : rows) {
      EXPECT_NEAR(simulated(row.s, one_host(n), bytes), row.expected, kTick) << row.s.name << n;
    }
    // rank by rank, a link between hosts is as good as one inside when it costs the same;
    // interfaces are free again before the latency is over, so that a rank's port stays the
    // narrower one
    EXPECT_NEAR(simulated(rows[2].s, one_rank_hosts(n), bytes), rows[2].expected, kTick) << n;
  }
}

/// B7: the formulas that the choice of algorithms starts from; reductions free, n a power of two
/// where the algorithm prefers it.
TEST(Simulate, MeetsTheFormulasOfLogarithmicAlgorithms) {
  for (const int n : {2, 3, 4, 5, 8, 13, 16, 32}) {
    const std::int64_t bytes = 96'000 * n * n;
    const double k = static_cast<double>(bytes), share = k * (n - 1) / n;
    const int up = std::bit_width(unsigned(n - 1)), down = std::bit_width(unsigned(n)) - 1;
    const double all = kAlpha + k * kBeta;
    struct Row {
      Schedule s;
      double expected;
      bool any_size = true;
    };
    const Row rows[] = {
        {schedule::binomial_all_reduce(n), 2 * up * all},
        {schedule::one_shot_all_reduce(n), (n - 1) * all},
        {schedule::recursive_doubling_all_reduce(n), down * all, false},
        {schedule::halving_doubling_all_reduce(n), 2 * (up * kAlpha + share * kBeta), false},
        {schedule::swing_all_reduce(n), 2 * (up * kAlpha + share * kBeta), false},
        {schedule::recursive_halving_reduce_scatter(n), up * kAlpha + share * kBeta, false},
        {schedule::bruck_all_gather(n), up * kAlpha + share * kBeta},
        {schedule::pat_all_gather(n), up * kAlpha + share * kBeta},
        {schedule::pat_reduce_scatter(n), up * kAlpha + share * kBeta},
        {schedule::binomial_scatter(n, n / 2), up * kAlpha + share * kBeta, false},
        {schedule::chain_broadcast(n, 1, 12), (n - 1 + 11) * (kAlpha + k / 12 * kBeta)},
        {schedule::pairwise_all_to_all(n), (n - 1) * (kAlpha + k / n / n * kBeta)},
    };
    for (const Row& row : rows) {
      if (!row.any_size && !std::has_single_bit(unsigned(n))) continue;
      const Topology free_sums = Topology::uniform(1, n, kLink, {1, 1}, 0);
      EXPECT_NEAR(simulated(row.s, free_sums, bytes), row.expected, kTick) << row.s.name << n;
    }
  }
}

/// B4: where the latency counts, a tree beats the ring; where bytes count, the ring does.
TEST(Simulate, TreesBeatTheRingBelowTheCrossover) {
  const int n = 16;
  const Topology t = Topology::uniform(n, 1, {0, 0}, {2e-5, 8.4e-9}, 1e-10);
  // 30 a + 30/16 K b = 8 a + 8 K b
  const double crossover = 22 * 2e-5 / ((8 - 30.0 / 16) * 8.4e-9);
  const auto below = static_cast<std::int64_t>(0.9 * crossover);
  const auto above = static_cast<std::int64_t>(1.2 * crossover);
  EXPECT_LT(simulated(schedule::binomial_all_reduce(n), t, below),
            simulated(schedule::ring_all_reduce(n), t, below));
  EXPECT_GT(simulated(schedule::binomial_all_reduce(n), t, above),
            simulated(schedule::ring_all_reduce(n), t, above));
  // two trees in pieces take 4 K b here, where a port does one transfer at a time and both ends
  // must be free; one tree in one piece takes 2 log2 n of them
  EXPECT_LT(1.9 * simulated(schedule::double_tree_all_reduce(n, 64), t, 1 << 24),
            simulated(schedule::binomial_all_reduce(n), t, 1 << 24));
}

TEST(Simulate, PiecesHideTheReductions) {
  const int n = 5, pieces = 4;
  const double chunk = 20'000;
  EXPECT_NEAR(simulated(schedule::ring_reduce_scatter(n, pieces), one_host(n), 100'000),
              4 * (kAlpha + chunk * kBeta + chunk / pieces * kGamma), kTick);
}

TEST(Simulate, HostsShareOneInterface) {
  // 4 ranks of one host send to 4 of another: latencies overlap, bytes do not
  Schedule s{"pairs", {}, 8, 4, {{}}};
  for (Rank r = 0; r < 4; ++r) s.rounds[0].push_back({r, r + 4, r, plan::ReceiveOp::kCopy});
  const Topology t = Topology::uniform(2, 4, {0, 0}, kLink);
  EXPECT_NEAR(simulated(s, t, 40'000), kAlpha + 40'000 * kBeta, kTick);
  EXPECT_NEAR(simulated(s, one_host(8), 40'000), kAlpha + 10'000 * kBeta, kTick);
}

TEST(Simulate, HierarchyNeedsLittleMoreThanItsBytesBetweenHosts) {
  for (const int local : {1, 2, 4, 8}) {
    const Topology t = Topology::uniform(4, local, {0, 0}, kLink);
    const double k = 3.2e7;
    const double bound = 2.0 * 3 / 4 * k * kBeta;
    const double time = simulated(schedule::hierarchical_all_reduce(schedule::HostSizes(4, local)),
                                  t, static_cast<std::int64_t>(k));
    EXPECT_GE(time, bound);
    EXPECT_LE(time, bound + 6 * (kAlpha + k / 4 * kBeta / local)) << local;
  }
}

TEST(Simulate, HierarchyBeatsTheFlatRingOnSmallBuffersBetweenHosts) {
  const Topology t = Topology::uniform(2, 2, {5e-7, 1e-10}, {2e-5, 8.4e-9}, 1e-10);
  EXPECT_LT(
      1.5 * simulated(schedule::hierarchical_all_reduce(schedule::HostSizes(2, 2)), t, 16 << 10),
      simulated(schedule::ring_all_reduce(4), t, 16 << 10));
}

TEST(Simulate, TimelineKeepsPortsAndRoundsInOrder) {
  for (const schedule::Builder& b : schedule::builders()) {
    const int hosts = b.takes.hosts ? 2 : 1;
    const Schedule s = b.build(6, hosts).take_or_throw();
    const Topology t = Topology::uniform(hosts, 6 / hosts, kLink, kLink, kGamma);
    ManualClock clock;
    clock.advance(std::chrono::seconds(3));
    const TimePoint begin = clock.now();
    const Simulation sim = simulate(s, t, 60'000, clock);
    EXPECT_EQ(clock.now(), begin + sim.duration);
    EXPECT_EQ(sim.duration, std::ranges::max(sim.finish));
    EXPECT_EQ(static_cast<std::int64_t>(sim.timeline.size()),
              b.size.transfers({.ranks = 6, .hosts = schedule::HostSizes(hosts, 6 / hosts)}));
    std::map<Rank, std::vector<SimulatedTransfer>> sends;
    for (const SimulatedTransfer& x : sim.timeline) {
      EXPECT_GE(x.start, begin);
      EXPECT_GE(begin + sim.finish[static_cast<std::size_t>(x.transfer.to)], x.end);
      sends[x.transfer.from].push_back(x);
    }
    for (auto& [rank, list] : sends) {
      std::ranges::sort(list, {}, &SimulatedTransfer::start);
      for (std::size_t i = 1; i < list.size(); ++i) {
        EXPECT_LE(list[i - 1].round, list[i].round) << b.name;
        EXPECT_LT(list[i - 1].start, list[i].start) << b.name;
      }
    }
  }
}

TEST(Simulate, IsDeterministicAndDropsTheTimelineOnRequest) {
  const Schedule s = schedule::direct_all_reduce(9);
  ManualClock a, b;
  const Simulation kept = simulate(s, one_host(9), 12'345, a);
  const Simulation dropped = simulate(s, one_host(9), 12'345, b, Timeline::kDrop);
  EXPECT_EQ(kept.finish, dropped.finish);
  EXPECT_TRUE(dropped.timeline.empty());
}

TEST(Simulate, CopesWithManyRanks) {
  const int n = 512;
  const std::int64_t bytes = 1024 * n;
  const double step = kAlpha + 1024 * kBeta;
  EXPECT_NEAR(simulated(schedule::ring_all_reduce(n), one_host(n), bytes),
              (n - 1) * (2 * step + 1024 * kGamma), kTick);
  EXPECT_NEAR(simulated(schedule::binomial_broadcast(4096, 0), one_host(4096), 1024), 12 * step,
              kTick);
}

TEST(SimulateDeathTest, AnotherNumberOfRanksIsABug) {
  ManualClock clock;
  EXPECT_DEATH((void)simulate(schedule::ring_all_reduce(3), one_host(2), 8, clock),
               "another number of ranks");
}

}  // namespace
}  // namespace stormo::analysis
