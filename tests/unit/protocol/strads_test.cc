// The scheduler of scheduled model parallelism, under random interleavings and in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <deque>
#include <limits>
#include <map>
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

/// Workers whose messages are delivered one at a time in an order that `rng` draws; each worker's
/// own messages stay in order. Checks what must hold after every message.
class Interleaving {
 public:
  Interleaving(Scheduler scheduler, double threshold, std::uint64_t seed)
      : scheduler_(std::move(scheduler)),
        threshold_(threshold),
        rng_(seed, "interleaving"),
        inbox_(static_cast<std::size_t>(scheduler_.options().workers)),
        outbox_(inbox_.size()),
        set_(inbox_.size()) {}

  std::vector<Blocks> run(std::int64_t rounds) {
    tell(GoOn{rounds});
    while (deliver_one()) check();
    EXPECT_EQ(scheduler_.rounds_done(), rounds);
    EXPECT_TRUE(scheduler_.in_flight().empty());
    return order_;
  }

 private:
  void tell(const ToScheduler& message) {
    for (const FromScheduler& answer : scheduler_.step(message).take_or_throw()) {
      if (const auto* compute = std::get_if<ComputeRound>(&answer)) {
        order_.push_back(compute->blocks);
        EXPECT_GE(compute->after, compute->round - scheduler_.options().depth);
        for (auto& box : inbox_) box.push_back(answer);
      } else if (const auto* aggregate = std::get_if<AggregateRound>(&answer)) {
        RoundAggregated aggregated{aggregate->round, {}};
        for (const auto block : order_[static_cast<std::size_t>(aggregate->round)]) {
          aggregated.changes.push_back(change_of(aggregate->round, block));
        }
        tell(aggregated);
      } else {
        for (auto& box : inbox_) box.push_back(answer);
      }
    }
  }

  bool deliver_one() {
    std::vector<std::pair<std::size_t, bool>> ready;  // worker, to the scheduler
    for (std::size_t w = 0; w < inbox_.size(); ++w) {
      if (!inbox_[w].empty()) ready.emplace_back(w, false);
      if (!outbox_[w].empty()) ready.emplace_back(w, true);
    }
    if (ready.empty()) return false;
    const auto [w, up] = ready[rng_.below(ready.size())];
    if (up) {
      const PartComputed part = outbox_[w].front();
      outbox_[w].pop_front();
      tell(part);
      return true;
    }
    const FromScheduler message = inbox_[w].front();
    inbox_[w].pop_front();
    if (const auto* compute = std::get_if<ComputeRound>(&message)) {
      EXPECT_EQ(compute->after, set_[w]);
      outbox_[w].push_back({static_cast<int>(w), compute->round});
    } else {
      EXPECT_EQ(std::get<SetRound>(message).round, set_[w]++);
    }
    return true;
  }

  /// No pair of what is in flight is at or above the threshold, whether of one round or of two.
  void check() {
    const ScheduleOptions& options = scheduler_.options();
    ASSERT_LE(std::ssize(scheduler_.in_flight()), options.depth + 1);
    Blocks busy;
    for (const auto& flight : scheduler_.in_flight()) {
      ASSERT_LE(std::ssize(flight.blocks), options.round);
      busy.insert(busy.end(), flight.blocks.begin(), flight.blocks.end());
    }
    for (std::size_t i = 0; i < busy.size(); ++i) {
      ASSERT_EQ(scheduler_.weight(busy[i]), options.rotation.empty() ? 0 : 1);
      for (std::size_t k = 0; k < i; ++k) {
        ASSERT_NE(busy[i], busy[k]);
        ASSERT_LT(interference(busy[i], busy[k]), threshold_);
      }
    }
  }

  Scheduler scheduler_;
  double threshold_;
  Rng rng_;
  std::vector<std::deque<FromScheduler>> inbox_;
  std::vector<std::deque<PartComputed>> outbox_;
  std::vector<std::int64_t> set_;
  std::vector<Blocks> order_;
};

TEST(Strads, NoPairAtOrAboveTheThresholdIsInFlightAndTheOrderNeverDependsOnTime) {
  for (const double threshold : {0.04, 0.2, 0.5, 1.0}) {
    for (const int depth : {0, 1, 3}) {
      for (const bool priority : {false, true}) {
        const ScheduleOptions options{.blocks = 100,
                                      .workers = 3,
                                      .round = 6,
                                      .depth = depth,
                                      .priority = priority,
                                      .seed = 7};
        const auto run = [&](std::uint64_t seed) {
          const auto conflicts = threshold < 1 ? conflicts_of(100, threshold) : nullptr;
          return Interleaving(Scheduler::make(options, conflicts).take_or_throw(), threshold, seed)
              .run(60);
        };
        const std::vector<Blocks> first = run(1);
        for (std::uint64_t seed = 2; seed < 6; ++seed) ASSERT_EQ(run(seed), first);
      }
    }
  }
}

TEST(Strads, EveryBlockIsUpdated) {
  for (const bool priority : {false, true}) {
    const ScheduleOptions options{.blocks = 100, .workers = 2, .round = 4, .priority = priority};
    const auto order =
        Interleaving(Scheduler::make(options, conflicts_of(100, 0.2)).take_or_throw(), 0.2, 1)
            .run(2000);
    std::set<std::int64_t> seen;
    for (const Blocks& blocks : order) seen.insert(blocks.begin(), blocks.end());
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
  std::vector<FromScheduler> answers = scheduler.step(GoOn{rounds}).take_or_throw();
  for (std::int64_t r = 0; r < rounds; ++r) {
    const auto block =
        static_cast<std::size_t>(std::get<ComputeRound>(answers.back()).blocks.at(0));
    if (r >= 1000) counts[block] += 1.0 / (rounds - 1000);
    (void)scheduler.step(PartComputed{0, r}).take_or_throw();
    answers = scheduler.step(RoundAggregated{r, {changes[block]}}).take_or_throw();
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
  (void)scheduler.step(GoOn{300}).take_or_throw();
  for (std::int64_t r = 0; r < 300; ++r) {
    std::set<std::int64_t> busy;
    for (const auto& flight : scheduler.in_flight()) {
      EXPECT_FALSE(flight.blocks.empty());
      for (const std::int64_t block : flight.blocks) EXPECT_TRUE(busy.insert(block).second);
    }
    RoundAggregated done{r, {}};
    for (const auto block : scheduler.in_flight().front().blocks) {
      done.changes.push_back(changes[static_cast<std::size_t>(block)]);
    }
    (void)scheduler.step(PartComputed{0, r}).take_or_throw();
    (void)scheduler.step(done).take_or_throw();
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
  EXPECT_EQ(scheduler.step(GoOn{1}).take_or_throw().size(), 1u);
  EXPECT_EQ(scheduler.in_flight().front().blocks.size(), 1u);
}

TEST(Strads, ARotationGoesRound) {
  const ScheduleOptions options{.blocks = 4, .workers = 2, .rotation = {{0, 1}, {2}, {3}}};
  const auto order = Interleaving(Scheduler::make(options).take_or_throw(), 2, 3).run(5);
  EXPECT_THAT(order, ElementsAre(Blocks{0, 1}, Blocks{2}, Blocks{3}, Blocks{0, 1}, Blocks{2}));
}

TEST(Strads, GoesOnFromAStateAsIfItHadNotEnded) {
  constexpr std::int64_t kBlocks = 50;
  const ScheduleOptions options{.blocks = kBlocks, .workers = 3, .round = 6, .depth = 2};
  const auto conflicts = conflicts_of(kBlocks, 0.5);
  const auto rounds_of = [&](Scheduler& scheduler, std::int64_t until) {
    std::vector<Blocks> rounds;
    RoundEvents events;
    events.compute = [&](int worker, const ComputeRound& round) {
      if (worker == 0) rounds.push_back(round.blocks);
      return Status();
    };
    events.aggregate = [](const ComputeRound& round) -> Result<std::vector<double>> {
      std::vector<double> changes;
      for (const std::int64_t b : round.blocks) changes.push_back(change_of(round.round, b));
      return changes;
    };
    events.set = [](int, const ComputeRound&) { return Status(); };
    throw_if_error(run_virtual(scheduler, until, {}, events).status());
    return rounds;
  };
  Scheduler whole = Scheduler::make(options, conflicts).take_or_throw();
  rounds_of(whole, 40);
  // both from written parts, as a file has them
  const auto same = std::make_shared<const Conflicts>(
      Conflicts::of(kBlocks, conflicts->all_pairs()).take_or_throw());
  Scheduler second = Scheduler::make(options, same, whole.state()).take_or_throw();
  EXPECT_EQ(second.rounds_done(), 40);
  EXPECT_EQ(rounds_of(second, 90), rounds_of(whole, 90));
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

TEST(Strads, MessagesThatCannotComeAreRefusedAndChangeNothing) {
  Scheduler scheduler = Scheduler::make({.blocks = 8, .workers = 2, .round = 2}).take_or_throw();
  (void)scheduler.step(GoOn{2}).take_or_throw();
  const auto refused = [&](const ToScheduler& message) {
    return scheduler.step(message).status().code() == Code::kInvalidArgument;
  };
  EXPECT_TRUE(refused(PartComputed{0, 1}));  // not in flight
  EXPECT_TRUE(refused(PartComputed{2, 0}));  // no such worker
  EXPECT_TRUE(refused(PartComputed{-1, 0}));
  EXPECT_TRUE(refused(RoundAggregated{0, {1, 1}}));  // parts are missing
  EXPECT_TRUE(refused(GoOn{1}));
  EXPECT_TRUE(scheduler.step(PartComputed{0, 0}).take_or_throw().empty());
  EXPECT_TRUE(refused(PartComputed{0, 0}));  // twice
  EXPECT_EQ(scheduler.step(PartComputed{1, 0}).take_or_throw().size(), 1u);
  EXPECT_TRUE(refused(RoundAggregated{0, {1}}));  // not of these blocks
  EXPECT_EQ(scheduler.step(RoundAggregated{0, {1, 1}}).take_or_throw().size(), 2u);
}

TEST(Strads, WhatIsOutOfRangeIsSaidTogether) {
  const auto wrong =
      Scheduler::make({.blocks = 0, .workers = 0, .round = 0, .depth = -1, .base_weight = 0});
  for (const char* name : {"blocks:", "workers:", "round:", "depth:", "base weight:"}) {
    EXPECT_THAT(wrong.status().message(), HasSubstr(name));
  }
  const auto of_rotation = Scheduler::make(
      {.blocks = 2, .workers = 0, .depth = 1, .rotation = {{2}, {-1, 1}, {0, 1, 0}, {1}}});
  EXPECT_EQ(of_rotation.status().message(),
            "workers: at least 1\n"
            "depth: a rotation has one round in flight, give 0\n"
            "rotation: there is no block 2\n"
            "rotation: there is no block -1\n"
            "rotation: block 0 is twice in a list");
  for (const Pairs& pairs : {Pairs{{0, 0}}, Pairs{{0, 3}}, Pairs{{-1, 0}}, Pairs{{0, 1}, {1, 0}}}) {
    EXPECT_FALSE(Conflicts::of(3, pairs).ok());
  }
}

/// Virtual time without data.
VirtualRounds virtual_run(const ScheduleOptions& options, const VirtualWorkers& workers,
                          std::int64_t rounds, std::vector<Blocks>* order = nullptr) {
  Scheduler scheduler = Scheduler::make(options, conflicts_of(options.blocks, 0.2)).take_or_throw();
  RoundEvents events;
  events.compute = [&](int worker, const ComputeRound& round) {
    if (worker == 0 && order != nullptr) order->push_back(round.blocks);
    return Status();
  };
  events.aggregate = [](const ComputeRound& round) -> Result<std::vector<double>> {
    std::vector<double> changes;
    for (const auto block : round.blocks) changes.push_back(change_of(round.round, block));
    return changes;
  };
  events.set = [](int, const ComputeRound&) { return Status(); };
  return run_virtual(scheduler, rounds, workers, events).take_or_throw();
}

TEST(Strads, VirtualTimeHasTheOrderOfEveryInterleaving) {
  const ScheduleOptions options{.blocks = 100, .workers = 3, .round = 6, .depth = 2};
  std::vector<Blocks> order;
  (void)virtual_run(options, {.slowness = {1, 1, 20}}, 50, &order);
  EXPECT_EQ(order,
            Interleaving(Scheduler::make(options, conflicts_of(100, 0.2)).take_or_throw(), 0.2, 9)
                .run(50));
}

TEST(Strads, ARoundTakesTwoMessagesAndThePartOfTheSlowest) {
  using std::chrono::microseconds;
  const ScheduleOptions options{.blocks = 1, .workers = 3};
  const VirtualWorkers workers{
      .compute = microseconds(30), .jitter = 0, .slowness = {1, 1, 4}, .latency = microseconds(10)};
  const VirtualRounds run = virtual_run(options, workers, 100);
  EXPECT_EQ(run.time, 100 * microseconds(10 + 4 * 30 + 10) + microseconds(10));
  EXPECT_EQ(run.waited[0], run.time - 100 * microseconds(30));
  EXPECT_EQ(run.updates, 100);
}

TEST(Strads, TimesThatCannotBeAddedUpAreRefused) {
  using std::chrono::hours;
  const auto status_of = [](const VirtualWorkers& workers, std::int64_t rounds) {
    Scheduler scheduler = Scheduler::make({.blocks = 64}).take_or_throw();
    RoundEvents events;
    events.compute = events.set = [](int, const ComputeRound&) { return Status(); };
    events.aggregate = [](const ComputeRound& round) -> Result<std::vector<double>> {
      return std::vector<double>(round.blocks.size());
    };
    return run_virtual(scheduler, rounds, workers, events).status();
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
  ScheduleOptions options{.blocks = 1000, .workers = 2, .round = 2};
  const VirtualWorkers workers{
      .compute = microseconds(5), .jitter = 0, .latency = microseconds(10)};
  const Duration one = virtual_run(options, workers, 200).time;
  options.depth = 3;
  const Duration four = virtual_run(options, workers, 200).time;
  EXPECT_GT(one, 2.8 * four);  // 30 us for a round, or the 10 us of computing
}

}  // namespace
}  // namespace stormo::protocol
