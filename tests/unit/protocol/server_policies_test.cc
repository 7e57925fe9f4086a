// The laws of parameter servers, in virtual time.
#include <cmath>
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/protocol/server/virtual_servers.h>

#include "tests/sanitized.h"

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;
using Kind = PolicyOptions::Kind;
using testing::ElementsAre;
using testing::HasSubstr;

std::shared_ptr<const Policy> policy_of(const PolicyOptions& options, int workers) {
  return make_policy(options, workers).take_or_throw();
}

VirtualOutcome outcome_of(const VirtualCluster& cluster, const PolicyOptions& options,
                          const VirtualEvents& events = {}) {
  return run_virtual(cluster, *policy_of(options, cluster.workers), events).take_or_throw();
}

double to_seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

struct SoftsyncCase {
  int workers;
  int n;
};
class SoftsyncLaw : public testing::TestWithParam<SoftsyncCase> {};

/// The laws hold where a worker reads at the moment of its push, so that it always computes.
constexpr Duration kNone{};

// Gupta, Zhang, Wang 2016: the mean staleness is (workers - 1) / c, with c = floor(workers / n).
TEST_P(SoftsyncLaw, MeanStaleness) {
  const auto [workers, n] = GetParam();
  for (const double jitter : {0.02, 0.3}) {
    if (kSanitized && jitter < 0.1) continue;
    const VirtualOutcome run =
        outcome_of({.workers = workers, .steps = 3000, .jitter = jitter, .latency = kNone},
                   {.kind = Kind::kNSoftsync, .n = n});
    const double law = static_cast<double>(workers - 1) / (workers / n);
    EXPECT_NEAR(run.servers[0].staleness().mean(), law, 0.01 * law) << "jitter " << jitter;
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, SoftsyncLaw,
    testing::Values(SoftsyncCase{8, 1}, SoftsyncCase{8, 2}, SoftsyncCase{8, 4}, SoftsyncCase{8, 8},
                    SoftsyncCase{10, 1}, SoftsyncCase{10, 3}, SoftsyncCase{10, 5},
                    SoftsyncCase{10, 10}, SoftsyncCase{30, 1}, SoftsyncCase{30, 4},
                    SoftsyncCase{30, 15}, SoftsyncCase{30, 30}),
    [](const auto& test) {
      return std::to_string(test.param.workers) + "_workers_n_" + std::to_string(test.param.n);
    });

// 5 workers and n = 2: an update is the average of 2 of 35 gradients, and one is left over.
TEST(NSoftsync, TheLastWorkerThatLeavesAppliesTheRest) {
  const VirtualOutcome run =
      outcome_of({.workers = 5, .steps = 7, .jitter = 0.5}, {.kind = Kind::kNSoftsync, .n = 2});
  EXPECT_EQ(run.servers[0].staleness().count, 35u);
  EXPECT_EQ(run.servers[0].version, 18u);
  EXPECT_EQ(run.servers[0].pending, 0);
}

TEST(Async, MeanStalenessIsTheNumberOfOtherWorkers) {
  const VirtualOutcome run =
      outcome_of({.workers = 12, .steps = 3000, .latency = kNone}, {.kind = Kind::kAsync});
  EXPECT_NEAR(run.servers[0].staleness().mean(), 11, 0.11);
  EXPECT_EQ(run.servers[0].version, 12u * 3000u);
}

TEST(Sync, NobodyComputesFromOldParameters) {
  VirtualCluster cluster{.workers = 5, .servers = 3, .steps = 200, .jitter = 0.9};
  cluster.slowness = {1, 1, 4};
  const VirtualOutcome run = outcome_of(cluster, {.kind = Kind::kSync});
  for (const ShardState& server : run.servers) {
    EXPECT_EQ(server.staleness().max, 0u);
    EXPECT_EQ(server.staleness().count, 1000u);
    EXPECT_EQ(server.version, 200u);
  }
}

// A worker asks all servers at once.
TEST(Sync, WaitsForSeveralServersAreOneWait) {
  VirtualCluster cluster{.workers = 4, .steps = 100};
  cluster.slowness = {1, 1, 1, 3};
  const VirtualOutcome one = outcome_of(cluster, {.kind = Kind::kSync});
  cluster.servers = 5;
  EXPECT_EQ(outcome_of(cluster, {.kind = Kind::kSync}).waited, one.waited);
  // two thirds of the time, but for jitter
  EXPECT_NEAR(to_seconds(one.waited[0]), to_seconds(one.time) * 2 / 3, 0.05);
  EXPECT_LT(one.waited[3], one.time / 20);
}

// The fastest worker is the last one, and waits for those before it.
TEST(Average, TermsComeInTheOrderOfWorkersWhoeverIsFirst) {
  VirtualCluster cluster{.workers = 4, .servers = 2, .steps = 50, .jitter = 0.9};
  cluster.slowness = {5, 3, 2, 1};
  std::vector<std::vector<int>> pushed(2);
  const VirtualOutcome run =
      outcome_of(cluster, {.kind = Kind::kAverage},
                 {.read = {},
                  .computed = {},
                  .pushed =
                      [&](int server, const Push& push, const PushDecision& decision) {
                        if (decision.action == PushAction::kRepeated) return Status();
                        pushed[static_cast<std::size_t>(server)].push_back(push.worker);
                        const bool last = decision.action == PushAction::kAddAndUpdate;
                        EXPECT_EQ(last, push.worker == 3);
                        return Status();
                      },
                  .left = {}});
  for (const std::vector<int>& of_server : pushed) {
    ASSERT_EQ(of_server.size(), 200u);
    for (std::size_t i = 0; i < of_server.size(); ++i) {
      EXPECT_EQ(of_server[i], static_cast<int>(i % 4)) << i;
    }
  }
  EXPECT_EQ(run.servers[0].staleness().max, 0u);
}

TEST(Average, NobodyWaitsForAWorkerThatHasLeft) {
  const auto policy = policy_of({.kind = Kind::kAverage}, 3);
  ShardState state(3);
  const auto action_of = [&](int worker) {
    return decide(*policy, state, {.worker = worker}).take_or_throw().action;
  };
  EXPECT_EQ(action_of(2), PushAction::kWait);
  EXPECT_EQ(action_of(1), PushAction::kWait);
  EXPECT_FALSE(leave(*policy, state, 0));
  EXPECT_EQ(action_of(1), PushAction::kAdd);
  note_push(state, {.worker = 1}, decide(*policy, state, {.worker = 1}).take_or_throw());
  EXPECT_TRUE(leave(*policy, state, 2)) << "the average of worker 1 alone";
}

/// The order of reads and updates at server 0.
struct Recorded {
  std::vector<std::string> lines;
  VirtualEvents events() {
    return {.read =
                [this](int w, int) {
                  lines.push_back("read " + std::to_string(w));
                  return Status();
                },
            .computed = {},
            .pushed =
                [this](int, const Push& push, const PushDecision&) {
                  lines.push_back("push " + std::to_string(push.worker));
                  return Status();
                },
            .left = {}};
  }
};

TEST(Async, AWarmStartIsThatOfTheFirstWorker) {
  Recorded record;
  (void)outcome_of({.workers = 3, .steps = 20}, {.kind = Kind::kAsync, .warm_start = 8},
                   record.events());
  for (std::size_t i = 0; i < 16; ++i) EXPECT_EQ(record.lines[i].back(), '0') << i;
  EXPECT_NE(record.lines[16].back(), '0') << "then all go on";
}

TEST(Async, NobodyWaitsForAFirstWorkerThatHasLeft) {
  const auto policy = policy_of({.kind = Kind::kAsync, .warm_start = 8}, 2);
  ShardState state(2);
  EXPECT_FALSE(may_read(*policy, state, 1).take_or_throw());
  leave(*policy, state, 0);
  EXPECT_TRUE(may_read(*policy, state, 1).take_or_throw());
}

TEST(Ssp, WithoutABoundIsAsync) {
  VirtualCluster cluster{.workers = 4, .steps = 100, .jitter = 0.5};
  cluster.slowness = {1, 1, 1, 7};
  Recorded async, ssp;
  (void)outcome_of(cluster, {.kind = Kind::kAsync}, async.events());
  (void)outcome_of(cluster, {.kind = Kind::kSsp, .bound = 1 << 30}, ssp.events());
  EXPECT_EQ(async.lines, ssp.lines);
}

TEST(Ssp, BoundOfZeroReadsBetweenRoundsOnly) {
  VirtualCluster cluster{.workers = 4, .steps = 50, .jitter = 0.9, .latency = milliseconds(3)};
  Recorded record;
  (void)outcome_of(cluster, {.kind = Kind::kSsp, .bound = 0}, record.events());
  // four reads, four pushes, and so on: every read sees all updates of the clocks before, no other
  for (std::size_t i = 0; i < record.lines.size(); ++i) {
    EXPECT_EQ(record.lines[i].substr(0, 4), i / 4 % 2 == 0 ? "read" : "push") << i;
  }
  EXPECT_EQ(record.lines.size(), 400u);
}

class SspBound : public testing::TestWithParam<int> {};

// From the log alone: no worker begins clock c before all have finished c - s clocks.
TEST_P(SspBound, HoldsUnderStalls) {
  const int bound = GetParam();
  constexpr int kSteps = 60;
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    VirtualCluster cluster{.workers = 5, .steps = kSteps, .jitter = 0.95, .seed = seed};
    cluster.slowness = {1, 1.5, 1, 10, 3};
    std::vector<int> begun(5), finished(5);
    int ahead = 0;
    const auto read = [&](int w, int) {
      for (const int other : finished) {
        if (other < kSteps) ahead = std::max(ahead, begun[static_cast<std::size_t>(w)] - other);
      }
      ++begun[static_cast<std::size_t>(w)];
      return Status();
    };
    const auto pushed = [&](int, const Push& push, const PushDecision&) {
      ++finished[static_cast<std::size_t>(push.worker)];
      return Status();
    };
    (void)outcome_of(cluster, {.kind = Kind::kSsp, .bound = bound},
                     {.read = read, .computed = {}, .pushed = pushed, .left = {}});
    EXPECT_LE(ahead, bound);
    EXPECT_GE(ahead, bound - 1) << "the stalls did not reach the bound";
  }
}
INSTANTIATE_TEST_SUITE_P(All, SspBound, testing::Values(1, 2, 5, 12));

// Chen et al. 2016: a step takes as long as with the fast workers alone.
TEST(BackupWorkers, SlowWorkersCostLittle) {
  VirtualCluster fast{.workers = 8, .steps = 300};
  const Duration alone = outcome_of(fast, {.kind = Kind::kSync}).time;
  VirtualCluster with_slow{.workers = 10, .steps = 240, .pooled = true};
  with_slow.slowness = {1, 1, 1, 1, 1, 1, 1, 1, 10, 10};
  const VirtualOutcome run = outcome_of(with_slow, {.kind = Kind::kBackupWorkers, .backups = 2});
  const double per_step =
      static_cast<double>(run.time.count()) / static_cast<double>(run.servers[0].version);
  EXPECT_LT(per_step, 1.1 * static_cast<double>(alone.count()) / 300);
  std::uint64_t dropped = 0, pushes = 0;
  for (const WorkerState& w : run.servers[0].workers) {
    dropped += w.dropped;
    pushes += w.pushes;
  }
  EXPECT_GT(dropped, 0u);
  EXPECT_EQ(run.servers[0].staleness().count + dropped, pushes);
  EXPECT_EQ(run.servers[0].staleness().max, 0u);
}

TEST(BackupWorkers, WithoutBackupsIsSync) {
  VirtualCluster cluster{.workers = 4, .steps = 80, .jitter = 0.6};
  Recorded sync, backup;
  (void)outcome_of(cluster, {.kind = Kind::kSync}, sync.events());
  (void)outcome_of(cluster, {.kind = Kind::kBackupWorkers, .backups = 0}, backup.events());
  EXPECT_EQ(sync.lines, backup.lines);
}

TEST(Async, OneSlowWorkerDoesNotSlowTheOthers) {
  VirtualCluster cluster{.workers = 4, .steps = 400, .pooled = true};
  cluster.slowness = {1, 1, 1, 3};
  const double async =
      std::chrono::duration<double>(outcome_of(cluster, {.kind = Kind::kAsync}).time).count();
  const double sync =
      std::chrono::duration<double>(outcome_of(cluster, {.kind = Kind::kSync}).time).count();
  EXPECT_GT(sync / async, 1.5);
}

class EveryPolicy : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, EveryPolicy,
                         testing::Values(Kind::kSync, Kind::kAsync, Kind::kSsp, Kind::kNSoftsync,
                                         Kind::kBackupWorkers, Kind::kAverage),
                         [](const auto& test) {
                           return std::string(policy_names()[static_cast<std::size_t>(test.param)]);
                         });

TEST_P(EveryPolicy, HasItsName) {
  EXPECT_EQ(policy_of({.kind = GetParam()}, 4)->name(),
            policy_names()[static_cast<std::size_t>(GetParam())]);
}

// Crashes at any time, of all but one worker: the others always come to their end.
TEST_P(EveryPolicy, GoesOnWithoutCrashedWorkers) {
  for (std::uint64_t seed = 1; seed <= 40; ++seed) {
    VirtualCluster cluster{.workers = 5, .servers = 2, .steps = 60, .jitter = 0.8, .seed = seed};
    Rng rng(seed, "crashes");
    for (const int w : {0, 2, 3, 4}) {
      cluster.crashes.push_back({w, milliseconds(rng.below(800))});
    }
    const VirtualOutcome run = outcome_of(cluster, {.kind = GetParam(), .n = 2, .backups = 1});
    EXPECT_EQ(run.steps[1], 60);
  }
}

TEST_P(EveryPolicy, ARunOfWorkersThatAllCrashEndsWithTheLast) {
  VirtualCluster cluster{.workers = 2, .steps = 1000};
  cluster.crashes = {{0, milliseconds(30)}, {1, milliseconds(70)}};
  EXPECT_EQ(outcome_of(cluster, {.kind = GetParam()}).time, milliseconds(70));
}

TEST_P(EveryPolicy, SameSeedSameRun) {
  VirtualCluster cluster{.workers = 6, .servers = 2, .steps = 50, .jitter = 0.7};
  Recorded a, b, c;
  const PolicyOptions options{.kind = GetParam(), .n = 2};
  const VirtualOutcome first = outcome_of(cluster, options, a.events());
  EXPECT_EQ(first.servers, outcome_of(cluster, options, b.events()).servers);
  EXPECT_EQ(a.lines, b.lines);
  cluster.seed = 2;
  (void)outcome_of(cluster, options, c.events());
  EXPECT_NE(a.lines, c.lines);
}

TEST_P(EveryPolicy, TakesARepeatedPushOnce) {
  const auto policy = policy_of({.kind = GetParam(), .n = 1, .backups = 1}, 3);
  ShardState state(3);
  note_read(state, 0);
  const Push push{.worker = 0, .sequence = 0};
  // ssp waits until all have read for their first clock
  note_read(state, 1);
  note_read(state, 2);
  const PushDecision first = decide(*policy, state, push).take_or_throw();
  EXPECT_NE(first.action, PushAction::kWait);
  note_push(state, push, first);
  const ShardState after = state;
  const PushDecision again = decide(*policy, state, push).take_or_throw();
  EXPECT_EQ(again.action, PushAction::kRepeated);
  note_push(state, push, again);
  EXPECT_EQ(state, after);
  EXPECT_THAT(decide(*policy, state, {.worker = 0, .sequence = 5}).status().message(),
              HasSubstr("push 1 was not received"));
}

// A worker that joins is waited for from now on, not for what it missed.
TEST_P(EveryPolicy, LetsAWorkerComeBack) {
  const auto policy = policy_of({.kind = GetParam(), .bound = 0, .n = 1, .backups = 0}, 2);
  ShardState state(2);
  (void)leave(*policy, state, 1);
  const auto read = [&](int w) {
    EXPECT_TRUE(may_read(*policy, state, w).take_or_throw());
    note_read(state, w);
  };
  const auto push = [&](int w) {
    const Push gradient{.worker = w, .sequence = state.worker(w).pushes};
    const PushDecision decision = decide(*policy, state, gradient).take_or_throw();
    EXPECT_NE(decision.action, PushAction::kWait);
    note_push(state, gradient, decision);
  };
  for (int i = 0; i < 10; ++i) {
    read(0);
    push(0);
  }
  join(state, 1);
  EXPECT_EQ(state.worker(1).pushes, 10u);
  for (int i = 0; i < 10; ++i) {
    read(0);
    read(1);
    push(0);
    push(1);
  }
  EXPECT_EQ(state.worker(1).pushes, 20u);
}

// What no transition leads to.
TEST(Invariants, SayWhatIsBroken) {
  ShardState state(3);
  state.worker(1).pushes = 4;
  const auto ssp = policy_of({.kind = Kind::kSsp, .bound = 3}, 3);
  EXPECT_TRUE(ssp->invariant(state).ok());
  state.worker(1).pushes = 5;
  EXPECT_EQ(ssp->invariant(state).code(), Code::kCorrupt);
  EXPECT_EQ(ssp->invariant(state).message(),
            "ssp: a worker has finished 5 clocks, the slowest one 0; the bound is 3");
  state.worker(1).active = false;
  EXPECT_TRUE(ssp->invariant(state).ok()) << "who has left breaks nothing";

  const auto portions = policy_of({.kind = Kind::kPortions, .portions = 2}, 3);
  state.pending = 3;
  EXPECT_EQ(portions->invariant(state).code(), Code::kCorrupt);
  EXPECT_EQ(portions->invariant(state).message(), "portions: 3 gradients of a batch of 2 portions");
}

// Workers compute portions of the batch; a coordinator makes the updates.
TEST(PortionsPolicy, CountsTheFirstGradientOfEachPortionOfTheBatch) {
  const auto policy = policy_of({.kind = Kind::kPortions, .portions = 3}, 2);
  ShardState state(2);
  const auto push = [&](int worker, int portion, std::uint64_t batch, double loss = 1) {
    const Push gradient{.worker = worker,
                        .sequence = state.worker(worker).pushes,
                        .weight = 4,
                        .loss_sum = loss,
                        .portion = portion,
                        .batch = batch};
    const PushDecision decision = decide(*policy, state, gradient).take_or_throw();
    note_push(state, gradient, decision);
    EXPECT_TRUE(policy->invariant(state).ok());
    return decision.action;
  };
  EXPECT_EQ(push(0, 2, 0), PushAction::kAdd);
  EXPECT_EQ(push(1, 0, 0), PushAction::kAdd);
  EXPECT_EQ(push(1, 2, 0, 100), PushAction::kDrop) << "a copy that came second";
  EXPECT_EQ(push(0, 1, 1), PushAction::kDrop) << "of another batch";
  EXPECT_EQ(push(0, 3, 0), PushAction::kDrop) << "there is no such portion";
  EXPECT_EQ(push(0, -1, 0), PushAction::kDrop) << "of no portion";
  EXPECT_EQ(push(1, 1, 0), PushAction::kAdd) << "also the last one: the coordinator updates";
  EXPECT_EQ(state.pending, 3);
  EXPECT_EQ(state.pending_weight, 12);
  EXPECT_EQ(state.pending_loss, 3);
  EXPECT_EQ(state.version, 0u);
  note_update(state);
  EXPECT_EQ(state.pending_loss, 0);
  EXPECT_EQ(push(0, 2, 0), PushAction::kDrop) << "late";
  EXPECT_EQ(push(0, 2, 1), PushAction::kAdd);
  EXPECT_EQ(state.worker(0).dropped, 4u);
}

TEST(PolicyOptions, RefusesWhatCannotBe) {
  const auto refused = [](const PolicyOptions& options) {
    return make_policy(options, 4).status().message();
  };
  EXPECT_THAT(refused({.kind = Kind::kNSoftsync, .n = 5}), HasSubstr("from 1 to 4"));
  EXPECT_THAT(refused({.kind = Kind::kNSoftsync, .n = 0}), HasSubstr("n = 0"));
  EXPECT_THAT(refused({.kind = Kind::kBackupWorkers, .backups = 4}), HasSubstr("from 0 to 3"));
  EXPECT_THAT(refused({.kind = Kind::kAverage, .compensation = Compensation::kDelay}),
              HasSubstr("delay compensation needs a policy"));
  EXPECT_THAT(refused({.kind = Kind::kAverage, .compensation = Compensation::kInverseStaleness}),
              HasSubstr("no staleness to compensate for"));
  EXPECT_THAT(refused({.kind = Kind::kPortions, .portions = 0}), HasSubstr("from 1 to 512"));
  EXPECT_THAT(refused({.kind = Kind::kPortions, .portions = 513}), HasSubstr("513 portions"));
  EXPECT_THAT(refused({.kind = Kind::kSsp, .bound = -1}), HasSubstr("0 or more"));
  EXPECT_THAT(refused({.kind = Kind::kSync, .warm_start = 1}), HasSubstr("with async only"));
  EXPECT_THAT(refused({.warm_start = -1}), HasSubstr("0 or more"));
  for (const Compensation how : {Compensation::kDelay, Compensation::kAdaptiveDelay}) {
    EXPECT_THAT(refused({.kind = Kind::kSync, .compensation = how}), HasSubstr("async or ssp"));
  }
}

TEST(Compensation, Factors) {
  const auto factors = [](Kind kind, Compensation how, std::uint64_t staleness) {
    ShardState state(8);
    state.version = staleness;
    const PushDecision d =
        decide(*policy_of({.kind = kind, .n = 4, .compensation = how}, 8), state, {})
            .take_or_throw();
    return std::vector{d.gradient_factor, d.rate_factor};
  };
  EXPECT_THAT(factors(Kind::kAsync, Compensation::kInverseStaleness, 4), ElementsAre(1, 0.25));
  EXPECT_THAT(factors(Kind::kAsync, Compensation::kInverseStaleness, 0), ElementsAre(1, 1));
  EXPECT_THAT(factors(Kind::kNSoftsync, Compensation::kInverseStaleness, 4), ElementsAre(0.25, 1));
  EXPECT_THAT(factors(Kind::kAsync, Compensation::kLearningRateOverN, 4), ElementsAre(1, 0.125));
  EXPECT_THAT(factors(Kind::kNSoftsync, Compensation::kLearningRateOverN, 4), ElementsAre(1, 0.25));
  EXPECT_THAT(factors(Kind::kSync, Compensation::kLearningRateOverN, 0), ElementsAre(1, 1));
}

// 30 workers, 1,000 steps each: a test of speed by count of events, and of the counters.
TEST(VirtualServers, CountsItsEvents) {
  const VirtualOutcome run =
      outcome_of({.workers = 30, .servers = 2, .steps = 1000}, {.kind = Kind::kAsync});
  EXPECT_EQ(run.events, 30 * (1000 * (2 * 4 + 1) + 1)) << "each step, and that a worker leaves";
  EXPECT_EQ(run.servers[0].version, 30000u);
}

}  // namespace
}  // namespace stormo::protocol
