// The scheduler of scheduled model parallelism, and its virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <set>

#include <stormo/protocol/strads/scheduler.h>
#include <stormo/protocol/strads/virtual_rounds.h>

namespace stormo::protocol {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Blocks = std::vector<std::int64_t>;
using Pairs = std::vector<Conflicts::Pair>;

/// Interference of blocks in groups: that of the same group 0.9, of neighbouring groups 0.3.
double interference(std::int64_t a, std::int64_t b) {
  const std::int64_t distance = std::abs(a / 10 - b / 10);
  return distance == 0 ? 0.9 : distance == 1 ? 0.3 : 0.05;
}

std::shared_ptr<const Conflicts> conflicts_of(std::int64_t blocks, double threshold) {
  Pairs pairs;
  for (std::int32_t a = 0; a < blocks; ++a) {
    for (std::int32_t b = a + 1; b < blocks; ++b) {
      if (interference(a, b) >= threshold) pairs.push_back({a, b});
    }
  }
  return std::make_shared<const Conflicts>(Conflicts::of(blocks, pairs).take_or_throw());
}

/// A change that depends on round and block alone.
double change_of(std::int64_t round, std::int64_t block) {
  return 1.0 / static_cast<double>(1 + (round * 7 + block * 13) % 101);
}

/// Ends the oldest round in flight.
void end_oldest(Scheduler& scheduler) {
  std::vector<double> changes;
  for (const std::int64_t block : scheduler.in_flight().front()) {
    changes.push_back(change_of(scheduler.rounds_done(), block));
  }
  throw_if_error(scheduler.end(changes));
}

/// No pair of what is in flight is at or above the threshold, whether of one round or of two.
void check(const Scheduler& scheduler, double threshold) {
  const ScheduleOptions& options = scheduler.options();
  ASSERT_LE(std::ssize(scheduler.in_flight()), options.depth + 1);
  Blocks busy;
  for (const Blocks& blocks : scheduler.in_flight()) {
    ASSERT_LE(std::ssize(blocks), options.round);
    busy.insert(busy.end(), blocks.begin(), blocks.end());
  }
  for (std::size_t i = 0; i < busy.size(); ++i) {
    ASSERT_EQ(scheduler.weight(busy[i]), options.rotation.empty() ? 0 : 1);
    for (std::size_t k = 0; k < i; ++k) {
      ASSERT_NE(busy[i], busy[k]);
      ASSERT_LT(interference(busy[i], busy[k]), threshold);
    }
  }
}

/// Until so many rounds are done, with as many in flight as may be. Returns their blocks.
std::vector<Blocks> run(Scheduler& scheduler, std::int64_t rounds, double threshold = 2) {
  std::vector<Blocks> order;
  while (scheduler.rounds_done() < rounds) {
    while (scheduler.may_begin() && scheduler.rounds_begun() < rounds) {
      order.push_back(scheduler.begin());
      check(scheduler, threshold);
    }
    end_oldest(scheduler);
  }
  EXPECT_TRUE(scheduler.in_flight().empty());
  return order;
}

TEST(Strads, NoPairAtOrAboveTheThresholdIsInFlight) {
  for (const double threshold : {0.04, 0.2, 0.5, 1.0}) {
    for (const int depth : {0, 1, 3}) {
      for (const bool priority : {false, true}) {
        const ScheduleOptions options{
            .blocks = 100, .round = 6, .depth = depth, .priority = priority, .seed = 7};
        const auto conflicts = threshold < 1 ? conflicts_of(100, threshold) : nullptr;
        const auto order_of = [&] {
          Scheduler scheduler = Scheduler::make(options, conflicts).take_or_throw();
          return run(scheduler, 60, threshold);
        };
        ASSERT_EQ(order_of(), order_of());
      }
    }
  }
}

TEST(Strads, EveryBlockIsUpdated) {
  for (const bool priority : {false, true}) {
    Scheduler scheduler =
        Scheduler::make({.blocks = 100, .round = 4, .priority = priority}, conflicts_of(100, 0.2))
            .take_or_throw();
    std::set<std::int64_t> seen;
    for (const Blocks& blocks : run(scheduler, 2000, 0.2))
      seen.insert(blocks.begin(), blocks.end());
    EXPECT_EQ(seen.size(), 100u);
  }
}

/// How often each block is drawn, when its change is always the same.
std::vector<double> shares(ScheduleOptions options, const std::vector<double>& changes) {
  options.blocks = std::ssize(changes);
  options.round = 1;
  Scheduler scheduler = Scheduler::make(options).take_or_throw();
  std::vector<double> counts(changes.size());
  const std::int64_t rounds = 40000;
  for (std::int64_t r = 0; r < rounds; ++r) {
    const auto block = static_cast<std::size_t>(scheduler.begin().at(0));
    if (r >= 1000) counts[block] += 1.0 / (rounds - 1000);
    throw_if_error(scheduler.end({&changes[block], 1}));
  }
  return counts;
}

TEST(Strads, ABlockIsDrawnInProportionToItsChangeAndTheBaseWeight) {
  const auto by_change = shares({.base_weight = 0.1}, {0.4, -0.2, 0, 0.0});
  const std::vector<double> expected{0.5, 0.3, 0.1, 0.1};
  for (std::size_t i = 0; i < 4; ++i) EXPECT_NEAR(by_change[i], expected[i], 0.015);
  for (const double share : shares({.priority = false}, {0.4, -0.2, 0, 0.0})) {
    EXPECT_NEAR(share, 0.25, 0.015);
  }
}

TEST(Strads, ADivergingRunKeepsItsInvariants) {
  const double inf = std::numeric_limits<double>::infinity();
  const std::vector<double> changes{1e308, -inf, std::nan(""), 1, 2, 1e308};
  Scheduler scheduler = Scheduler::make({.blocks = 6, .round = 3, .depth = 1}).take_or_throw();
  for (std::int64_t r = 0; r < 300; ++r) {
    while (scheduler.may_begin()) scheduler.begin();
    std::set<std::int64_t> busy;
    for (const Blocks& blocks : scheduler.in_flight()) {
      EXPECT_FALSE(blocks.empty());
      for (const std::int64_t block : blocks) EXPECT_TRUE(busy.insert(block).second);
    }
    std::vector<double> of_round;
    for (const std::int64_t block : scheduler.in_flight().front()) {
      of_round.push_back(changes[static_cast<std::size_t>(block)]);
    }
    throw_if_error(scheduler.end(of_round));
  }
}

TEST(Strads, BaseWeightsNeverAddUpToInfinity) {
  const auto with = [](double weight) {
    return Scheduler::make({.blocks = 3, .round = 1, .base_weight = weight});
  };
  EXPECT_TRUE(with(kMostBlockWeight).ok());
  EXPECT_FALSE(with(2 * kMostBlockWeight).ok());
  EXPECT_FALSE(with(std::numeric_limits<double>::infinity()).ok());
  EXPECT_FALSE(with(std::nan("")).ok());
}

TEST(Strads, ARoundLargerThanAllBlocksEndsAsSoonAsOneOfTheirNumber) {
  // blocks 0 and 1 are in conflict: one of them is drawn again and again, and never taken
  const auto conflicts =
      std::make_shared<const Conflicts>(Conflicts::of(2, Pairs{{0, 1}}).take_or_throw());
  Scheduler scheduler =
      Scheduler::make({.blocks = 2, .round = std::numeric_limits<int>::max()}, conflicts)
          .take_or_throw();
  EXPECT_EQ(scheduler.begin().size(), 1u);
}

TEST(Strads, ARotationGoesRound) {
  Scheduler scheduler =
      Scheduler::make({.blocks = 4, .rotation = {{0, 1}, {2}, {3}}}).take_or_throw();
  const auto order = run(scheduler, 5);
  EXPECT_THAT(order, ElementsAre(Blocks{0, 1}, Blocks{2}, Blocks{3}, Blocks{0, 1}, Blocks{2}));
}

TEST(Strads, GoesOnFromAStateAsIfItHadNotEnded) {
  constexpr std::int64_t kBlocks = 50;
  const ScheduleOptions options{.blocks = kBlocks, .round = 6, .depth = 2};
  const auto conflicts = conflicts_of(kBlocks, 0.5);
  Scheduler whole = Scheduler::make(options, conflicts).take_or_throw();
  run(whole, 40);
  // both from written parts, as a file has them
  const auto same = std::make_shared<const Conflicts>(
      Conflicts::of(kBlocks, conflicts->all_pairs()).take_or_throw());
  Scheduler second = Scheduler::make(options, same, whole.state()).take_or_throw();
  EXPECT_EQ(second.rounds_done(), 40);
  EXPECT_EQ(run(second, 90), run(whole, 90));
  EXPECT_EQ(second.state(), whole.state());

  const auto refused = [&](ScheduleState state) {
    return Scheduler::make(options, same, state).status().code() == Code::kInvalidArgument;
  };
  const ScheduleState good{.rounds = 1, .draws = 12, .weights = std::vector<double>(kBlocks, 1)};
  EXPECT_FALSE(refused(good));
  ScheduleState bad = good;
  bad.rounds = -1;
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.draws = 24;  // a round has 12
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.weights.pop_back();
  EXPECT_TRUE(refused(bad));
  bad = good;
  bad.weights[3] = std::numeric_limits<double>::quiet_NaN();
  EXPECT_TRUE(refused(bad));
}

TEST(Strads, ChangesOfNoRoundAreRefusedAndChangeNothing) {
  Scheduler scheduler = Scheduler::make({.blocks = 8, .round = 2}).take_or_throw();
  const std::vector<double> two{1, 1}, one{1};
  EXPECT_EQ(scheduler.end(two).code(), Code::kInvalidArgument);  // no round is in flight
  EXPECT_EQ(scheduler.begin().size(), 2u);
  EXPECT_FALSE(scheduler.may_begin());
  EXPECT_EQ(scheduler.end(one).code(), Code::kInvalidArgument);  // not of these blocks
  EXPECT_EQ(scheduler.rounds_done(), 0);
  throw_if_error(scheduler.end(two));
  EXPECT_EQ(scheduler.rounds_done(), 1);
}

TEST(Strads, WhatIsOutOfRangeIsSaidTogether) {
  const auto wrong = Scheduler::make({.blocks = 0, .round = 0, .depth = -1, .base_weight = 0});
  for (const char* name : {"blocks:", "round:", "depth:", "base weight:"}) {
    EXPECT_THAT(wrong.status().message(), HasSubstr(name));
  }
  const auto of_rotation =
      Scheduler::make({.blocks = 2, .depth = 1, .rotation = {{2}, {-1, 1}, {0, 1, 0}, {1}}});
  EXPECT_EQ(of_rotation.status().message(),
            "depth: a rotation has one round in flight, give 0\n"
            "rotation: there is no block 2\n"
            "rotation: there is no block -1\n"
            "rotation: block 0 is twice in a list");
  for (const Pairs& pairs : {Pairs{{0, 0}}, Pairs{{0, 3}}, Pairs{{-1, 0}}, Pairs{{0, 1}, {1, 0}}}) {
    EXPECT_FALSE(Conflicts::of(3, pairs).ok());
  }
}

/// Times of rounds of one block.
Result<VirtualRounds> times_of(const VirtualWorkers& workers, int count, std::int64_t rounds,
                               int depth = 0, std::size_t blocks = 1) {
  VirtualRounds time(workers, count);
  STORMO_RETURN_IF_ERROR(time.start());
  for (std::int64_t begun = 0, done = 0; done < rounds; ++done) {
    for (; begun < std::min(done + depth + 1, rounds); ++begun) {
      STORMO_RETURN_IF_ERROR(time.begin(blocks));
    }
    STORMO_RETURN_IF_ERROR(time.end());
  }
  STORMO_RETURN_IF_ERROR(time.finish());
  return time;
}

TEST(Strads, ARoundTakesTwoMessagesAndThePartOfTheSlowest) {
  using std::chrono::microseconds;
  const VirtualWorkers workers{
      .compute = microseconds(30), .jitter = 0, .slowness = {1, 1, 4}, .latency = microseconds(10)};
  const VirtualRounds run = times_of(workers, 3, 100).take_or_throw();
  EXPECT_EQ(run.time(), 100 * microseconds(10 + 4 * 30 + 10) + microseconds(10));
  EXPECT_EQ(run.waited()[0], run.time() - 100 * microseconds(30));
}

TEST(Strads, TimesThatCannotBeAddedUpAreRefused) {
  using std::chrono::hours;
  const auto status_of = [](const VirtualWorkers& workers, std::int64_t rounds) {
    return times_of(workers, 1, rounds, 0, 32).status();
  };
  const hours most = std::chrono::duration_cast<hours>(kMostVirtualTime);
  EXPECT_TRUE(status_of({.compute = hours(1), .slowness = {10}, .latency = hours(1)}, 100).ok());
  for (const VirtualWorkers& workers :
       {VirtualWorkers{.compute = most}, VirtualWorkers{.latency = most + hours(1)},
        VirtualWorkers{.latency = most / 3}, VirtualWorkers{.compute = hours(1), .slowness = {1e6}},
        VirtualWorkers{.compute = most, .slowness = {1e6}, .latency = most}}) {
    const Status status = status_of(workers, 100);
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(status.message(), HasSubstr("over 30 years"));
  }
}

TEST(Strads, RoundsInFlightHideMessages) {
  using std::chrono::microseconds;
  const VirtualWorkers workers{
      .compute = microseconds(5), .jitter = 0, .latency = microseconds(10)};
  const Duration one = times_of(workers, 2, 200, 0, 2).take_or_throw().time();
  const Duration four = times_of(workers, 2, 200, 3, 2).take_or_throw().time();
  EXPECT_GT(one, 2.8 * four);  // 30 us for a round, or the 10 us of computing
}

}  // namespace
}  // namespace stormo::protocol
