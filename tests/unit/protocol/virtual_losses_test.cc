// Lost messages and lost servers, in virtual time: every push counts once, and nothing that a
// worker was told is taken back.
#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/virtual_servers.h>

#include "tests/sanitized.h"

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using Kind = PolicyOptions::Kind;

/// What the data of a run sees.
class Account {
 public:
  VirtualEvents events() {
    return {.read =
                [this](int worker, int server) {
                  ++reads[{worker, server}];
                  return Status();
                },
            .computed = {},
            .pushed =
                [this](int server, const Push& push, const PushDecision& decision) {
                  const bool again = decision.action == PushAction::kRepeated;
                  ++(again ? repeated : taken)[{push.worker, server, push.sequence}];
                  order.emplace_back(push.worker, push.sequence, again);
                  return Status();
                },
            .left = {},
            .step_ended =
                [this](int worker) {
                  ++acknowledged[worker];
                  return Status();
                }};
  }
  using Key = std::tuple<int, int, std::uint64_t>;  // worker, server, sequence
  std::map<Key, int> taken, repeated;
  std::map<std::pair<int, int>, int> reads;
  std::map<int, std::int64_t> acknowledged;  // steps whose push has its answers, by worker
  std::vector<std::tuple<int, std::uint64_t, bool>> order;
};

Result<VirtualOutcome> outcome_of(const VirtualCluster& cluster, const PolicyOptions& policy,
                                  Account& account) {
  return run_virtual(cluster, *make_policy(policy, cluster.workers).take_or_throw(),
                     account.events());
}

/// All steps were done, and each read and push was counted once by every server.
void expect_each_once(const VirtualCluster& cluster, const VirtualOutcome& run,
                      const Account& account) {
  EXPECT_EQ(run.lost, "");
  const auto steps = static_cast<std::uint64_t>(cluster.steps);
  EXPECT_EQ(account.taken.size(), steps * static_cast<std::uint64_t>(cluster.workers) *
                                      static_cast<std::uint64_t>(cluster.servers));
  for (const auto& [push, times] : account.taken) EXPECT_EQ(times, 1);
  for (const auto& [who, times] : account.reads) EXPECT_EQ(times, cluster.steps);
  for (const auto& [worker, times] : account.acknowledged) EXPECT_EQ(times, cluster.steps);
  for (const ShardState& server : run.servers) {
    for (const WorkerState& worker : server.workers) {
      EXPECT_EQ(worker.reads, steps);
      EXPECT_EQ(worker.pushes, steps);
    }
  }
}

struct LossCase {
  PolicyOptions policy;
  double loss;
};
class Losses : public testing::TestWithParam<LossCase> {};

TEST_P(Losses, EveryPushCountsOnce) {
  const auto& [policy, loss] = GetParam();
  for (const bool backups : {false, true}) {
    const VirtualCluster cluster{.workers = 4,
                                 .servers = 2,
                                 .steps = 150,
                                 .loss = loss,
                                 .timeout = milliseconds(20),
                                 .backups = backups};
    Account account;
    const VirtualOutcome run = outcome_of(cluster, policy, account).take_or_throw();
    expect_each_once(cluster, run, account);
    EXPECT_GT(account.repeated.size(), 150 * 4 * 2 * loss / 2) << "hardly any answer was lost";
    // a step has 8 messages, and the first that is lost of each of its two rounds costs a time-out
    EXPECT_GT(run.time, milliseconds(150 * 10));
  }
}

INSTANTIATE_TEST_SUITE_P(
    All, Losses,
    testing::Values(LossCase{{.kind = Kind::kSync}, 0.1}, LossCase{{.kind = Kind::kAsync}, 0.02},
                    LossCase{{.kind = Kind::kAsync}, 0.5}, LossCase{{.kind = Kind::kSsp}, 0.1},
                    LossCase{{.kind = Kind::kNSoftsync, .n = 2}, 0.1},
                    LossCase{{.kind = Kind::kBackupWorkers}, 0.1}),
    [](const auto& test) {
      return std::string(policy_names()[static_cast<std::size_t>(test.param.policy.kind)]) + "_" +
             std::to_string(static_cast<int>(test.param.loss * 100));
    });

// run_virtual() fails where a worker is too far ahead; here one is as far as it may be.
TEST(LostMessages, TheBoundOfSspHolds) {
  for (const int bound : {0, 1, 4}) {
    VirtualCluster cluster{.workers = 5, .steps = 200, .loss = 0.2, .timeout = milliseconds(15)};
    cluster.slowness = {1, 1, 1, 1, 3};
    Account account;
    std::vector<std::int64_t> done(5);
    std::int64_t most = 0;
    VirtualEvents events = account.events();
    events.read = [&](int worker, int) {
      const auto steps = static_cast<std::int64_t>(done[static_cast<std::size_t>(worker)]);
      most = std::max(most, steps - std::ranges::min(done));
      return Status();
    };
    events.pushed = [&](int, const Push& push, const PushDecision& decision) {
      if (decision.action != PushAction::kRepeated) ++done[static_cast<std::size_t>(push.worker)];
      return Status();
    };
    const auto policy = make_policy({.kind = Kind::kSsp, .bound = bound}, 5).take_or_throw();
    throw_if_error(run_virtual(cluster, *policy, events).status());
    EXPECT_EQ(most, bound);
  }
}

/// After its `pushes`, a worker waits for a push of the next one.
class InACircle final : public Policy {
 public:
  explicit InACircle(std::uint64_t pushes) : pushes_(pushes) {}
  std::string_view name() const override { return "in_a_circle"; }
  bool may_push(const ShardState& state, int worker) const override {
    const int next = (worker + 1) % static_cast<int>(state.workers.size());
    return state.worker(worker).pushes < pushes_ || !state.worker(next).active ||
           state.worker(next).pushes > state.worker(worker).pushes;
  }

 private:
  std::uint64_t pushes_;
};

// Workers whose messages may be lost ask again and again, but nothing happens any more.
TEST(LostMessages, ADeadlockEndsTheRunAndIsNamed) {
  for (const double loss : {0.0, 0.3}) {
    VirtualCluster cluster{.workers = 3, .servers = 2, .steps = 20, .loss = loss};
    const Status stuck = run_virtual(cluster, InACircle(5)).status();
    EXPECT_EQ(stuck.code(), Code::kCorrupt);
    EXPECT_THAT(stuck.message(), HasSubstr("policy in_a_circle lets no worker go on"));
    EXPECT_THAT(stuck.message(), HasSubstr("worker 0 waits to push at server 0 (version 15, 0 "
                                           "pending gradients); worker 0 waits to push at server "
                                           "1"));
    EXPECT_THAT(stuck.message(), HasSubstr("and 2 more. Use another policy, or change"));
    // one that has left lets the next ones go on, however late
    cluster.crashes = {{.worker = 1, .at = std::chrono::seconds(5)}};
    const VirtualOutcome run = run_virtual(cluster, InACircle(5)).take_or_throw();
    EXPECT_EQ(run.steps[0], 20);
    EXPECT_EQ(run.steps[2], 20);
  }
}

TEST(LostMessages, TheSameSeedGivesTheSameRun) {
  VirtualCluster cluster{.workers = 4, .servers = 3, .steps = 60, .loss = 0.1, .backups = true};
  cluster.server_crashes = {{.server = 1, .at = milliseconds(200)}};
  Account first, again, other;
  const auto run = outcome_of(cluster, {}, first).take_or_throw();
  EXPECT_EQ(outcome_of(cluster, {}, again).take_or_throw().servers, run.servers);
  EXPECT_EQ(first.order, again.order);
  cluster.seed = 2;
  (void)outcome_of(cluster, {}, other).take_or_throw();
  EXPECT_NE(first.order, other.order);
}

TEST(LostMessages, AreNotThoseOfAReliableRun) {
  const VirtualCluster cluster{.workers = 3, .servers = 2, .steps = 50};
  VirtualCluster patient = cluster;
  patient.timeout = milliseconds(1);
  Account a, b;
  const auto run = outcome_of(cluster, {}, a).take_or_throw();
  EXPECT_EQ(outcome_of(patient, {}, b).take_or_throw().events, run.events)
      << "nothing is sent again";
  EXPECT_TRUE(a.repeated.empty());
}

class LostServer : public testing::TestWithParam<Kind> {};
INSTANTIATE_TEST_SUITE_P(All, LostServer,
                         testing::Values(Kind::kSync, Kind::kAsync, Kind::kSsp, Kind::kNSoftsync,
                                         Kind::kBackupWorkers, Kind::kAverage),
                         [](const auto& test) {
                           return std::string(policy_names()[static_cast<std::size_t>(test.param)]);
                         });

// At whatever moment of a step it is, the run goes on with what workers were told.
TEST_P(LostServer, WithABackupNoAcknowledgedPushIsLost) {
  std::size_t repeated = 0;
  for (int moment = 0; moment < 120; moment += kSanitized ? 4 : 1) {
    const auto at = milliseconds(100) + moment * std::chrono::microseconds(97);
    const VirtualCluster cluster{.workers = 4,
                                 .servers = 3,
                                 .steps = 40,
                                 .latency = milliseconds(1),
                                 .timeout = milliseconds(30),
                                 .server_crashes = {{.server = moment % 3, .at = at}},
                                 .backups = true};
    Account account;
    const VirtualOutcome run = outcome_of(cluster, {.kind = GetParam()}, account).take_or_throw();
    expect_each_once(cluster, run, account);
    repeated += account.repeated.size();
  }
  EXPECT_GT(repeated, 0u) << "no answer was under way";
}

TEST(LostServers, WithoutABackupItsLossEndsTheRun) {
  VirtualCluster cluster{.workers = 3, .servers = 2, .steps = 50};
  cluster.server_crashes = {{.server = 1, .at = milliseconds(105)}};
  Account account;
  const VirtualOutcome run = outcome_of(cluster, {}, account).take_or_throw();
  EXPECT_EQ(run.lost, "server 1");
  EXPECT_EQ(run.time, milliseconds(105));
  EXPECT_LE(run.steps[0], 11);
}

TEST(LostServers, TheNextOneToItMustNotBeLostToo) {
  const auto lost_of = [](std::vector<VirtualCluster::ServerCrash> crashes) {
    const VirtualCluster cluster{.workers = 3,
                                 .servers = 4,
                                 .steps = 50,
                                 .server_crashes = std::move(crashes),
                                 .backups = true};
    Account account;
    const VirtualOutcome run = outcome_of(cluster, {}, account).take_or_throw();
    if (run.lost.empty()) expect_each_once(cluster, run, account);
    return run.lost;
  };
  EXPECT_EQ(lost_of({{0, milliseconds(100)}, {2, milliseconds(200)}}), "");
  EXPECT_EQ(lost_of({{0, milliseconds(100)}, {0, milliseconds(200)}}), "") << "only once";
  EXPECT_EQ(lost_of({{0, milliseconds(100)}, {1, milliseconds(200)}}), "server 1");
  EXPECT_EQ(lost_of({{0, milliseconds(100)}, {3, milliseconds(200)}}), "server 3");
  EXPECT_EQ(lost_of({{0, milliseconds(100)}, {1, std::chrono::hours(1)}}), "") << "it had ended";
}

// A copy costs one message more each way.
TEST(LostServers, ABackupCostsTwoMessagesForEachRequest) {
  const auto time = [](bool backups) {
    Account account;
    return outcome_of({.workers = 1,
                       .servers = 2,
                       .steps = 10,
                       .jitter = 0,
                       .latency = milliseconds(1),
                       .backups = backups},
                      {}, account)
        .take_or_throw()
        .time;
  };
  EXPECT_EQ(time(false), milliseconds(10 * (10 + 4)));
  EXPECT_EQ(time(true), milliseconds(10 * (10 + 8)));
}

TEST(LostServers, WorkersMayBeLostAsWell) {
  VirtualCluster cluster{.workers = 4, .servers = 2, .steps = 40, .loss = 0.1, .backups = true};
  cluster.crashes = {{.worker = 2, .at = milliseconds(150)}};
  cluster.server_crashes = {{.server = 0, .at = milliseconds(151)}};
  for (const auto kind : {Kind::kSync, Kind::kSsp, Kind::kBackupWorkers}) {
    Account account;
    const VirtualOutcome run = outcome_of(cluster, {.kind = kind}, account).take_or_throw();
    EXPECT_EQ(run.lost, "");
    EXPECT_EQ(run.steps[0], 40);
    EXPECT_LT(run.steps[2], 20);
    EXPECT_EQ(run.servers[0].worker(1).pushes, 40u);
    EXPECT_EQ(run.servers[0].active_workers(), 0);
  }
}

TEST(LostServers, RefusesWhatCannotBe) {
  const auto refused = [](const VirtualCluster& cluster) {
    Account account;
    return outcome_of(cluster, {}, account).status().message();
  };
  EXPECT_THAT(refused({.loss = 1}), HasSubstr("from 0 to less than 1"));
  EXPECT_THAT(refused({.loss = -0.1}), HasSubstr("from 0 to less than 1"));
  EXPECT_THAT(refused({.timeout = {}}), HasSubstr("a time-out"));
  EXPECT_THAT(refused({.servers = 1, .backups = true}), HasSubstr("there is only one"));
  EXPECT_THAT(refused({.servers = 2, .server_crashes = {{.server = 2, .at = {}}}}),
              HasSubstr("server 2 crashes, but servers are 0 to 1"));
}

}  // namespace
}  // namespace stormo::protocol
