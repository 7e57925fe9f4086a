// Downpour SGD on ranks that are threads: workers that do not pull and push in every step.
#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/protocol/server/virtual_servers.h>

#include "trainer_run.h"

namespace stormo::train {
namespace {

using protocol::Compensation;
using test::distance;
using testing::HasSubstr;
using Policy = protocol::PolicyOptions::Kind;

class Downpour : public test::TrainerRun {
 protected:
  Downpour() : TrainerRun("stormo_downpour_") {
    options.strategy.kind = Strategy::Kind::kParameterServer;
  }
  void exchange(int fetch, int push) { options.strategy.exchange_periods = {fetch, push}; }
};

// Dean et al. have n_fetch = n_push = 1, and Adagrad at the servers.
TEST_F(Downpour, OneWorkerThatExchangesInEveryStepIsSequentialAdagrad) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdagrad, .lr = 0.05};
  const Outcome served = run(1);
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  EXPECT_LE(distance(served.values, run(1).values), 1e-12);
}

// A pull gives what plain SGD has made of the copy already.
TEST_F(Downpour, OneWorkerWithSgdIsSequentialHoweverSeldomItPulls) {
  options.optimizer = {.lr = 0.05};
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  const Outcome sequential = run(1);
  options.strategy.kind = Strategy::Kind::kParameterServer;
  for (const auto& [fetch, push] : {std::pair{5, 1}, {20, 1}, {4, 4}, {8, 4}, {6, 2}}) {
    exchange(fetch, push);
    EXPECT_LE(distance(run(1).values, sequential.values), 1e-12) << fetch << ", " << push;
  }
}

TEST_F(Downpour, PushesAreAsManyAsThePaperSays) {
  options.optimizer = {.lr = 0.02};
  options.servers.count = 1;
  for (const auto& [fetch, push] : {std::pair{4, 1}, {1, 4}, {4, 4}, {3, 5}}) {
    exchange(fetch, push);
    const Outcome out = run(3);
    const int pushes = 1 + 19 / push;  // Dean et al.: 1 + floor((steps - 1) / n)
    for (const observe::StalenessRecord& worker : out.end.staleness) {
      EXPECT_EQ(worker.gradients, pushes) << fetch << ", " << push;
    }
    EXPECT_LT(out.end.train_loss, 1.1);
  }
}

// In the order that virtual time has, and as often as docs/async.md says.
TEST_F(Downpour, AWorkerPullsAndPushesAtTheStepsOfASimulation) {
  options.optimizer = {.lr = 0.02};
  options.servers.count = 1;
  for (const auto& [fetch, push] : {std::pair{1, 1}, {4, 1}, {1, 4}, {4, 4}, {3, 5}, {7, 2}}) {
    std::string simulated;
    const auto add = [&simulated](char what) {
      simulated += what;
      return Status();
    };
    const auto policy = protocol::make_policy({}, 1).take_or_throw();
    throw_if_error(
        protocol::run_virtual({.workers = 1, .steps = 20, .read_every = fetch, .push_every = push},
                              *policy,
                              {.read = [&](int, int) { return add('r'); },
                               .computed = [&](int, std::int64_t, Duration) { return add('s'); },
                               .pushed = [&](int, const protocol::Push&,
                                             const protocol::PushDecision&) { return add('p'); },
                               .left = {}})
            .status());
    exchange(fetch, push);
    std::array<std::string, 3> real;
    on_action = [&](Rank rank, const plan::Action& a) {
      std::string& order = real[static_cast<std::size_t>(rank)];
      if (a.kind == plan::ActionKind::kPull) order += 'r';
      if (a.kind == plan::ActionKind::kLoss) order += 's';
      if (a.kind == plan::ActionKind::kPush) order += 'p';
    };
    (void)run(3);
    for (const std::string& order : real) {
      EXPECT_EQ(order, simulated) << fetch << ", " << push;
      EXPECT_EQ(std::ranges::count(order, 'r'), 1 + 19 / fetch);
      EXPECT_EQ(std::ranges::count(order, 'p'), 1 + 19 / push);
    }
  }
}

TEST_F(Downpour, AGradientIsStaleByAllUpdatesSinceThePull) {
  options.optimizer = {.lr = 0.02};
  options.servers.count = 1;
  exchange(20, 1);
  const Outcome out = run(1);
  EXPECT_EQ(out.end.staleness[0].max, 19);
  EXPECT_DOUBLE_EQ(out.end.staleness[0].mean, 9.5);  // (workers - 1) + workers (fetch - 1) / 2
}

// The first worker stops in the step after the warm start, until another one has begun.
TEST_F(Downpour, AWarmStartCountsSteps) {
  options.optimizer = {.lr = 0.02};
  options.servers.policy.warm_start = 7;
  exchange(2, 2);
  std::atomic<int> alone{0}, others{0}, before_others{-1};
  in_loss = [&](Rank rank) {
    if (rank != 0) {
      if (others++ == 0) before_others = alone.load();
      return;
    }
    for (const Deadline end = Deadline::after(std::chrono::seconds(10));
         alone == 8 && others == 0 && !end.expired();) {
      std::this_thread::yield();
    }
    ++alone;
  };
  (void)run(3);
  EXPECT_EQ(before_others, 8) << "7 steps, and one to the push after them";
}

TEST_F(Downpour, ASignalLeavesNothingUnpushed) {
  options.optimizer = {.lr = 0.02};
  options.steps = 100000;
  options.checkpoint = {.directory = folder};
  exchange(16, 16);
  in_loss = [count = std::make_shared<std::atomic<int>>(0)](Rank) {
    if (++*count == 21) std::raise(SIGTERM);
  };
  EXPECT_EQ(try_run(1).status().code(), Code::kInterrupted);
  in_loss = {};
  options.resume = true;
  options.steps = 40;
  const Outcome resumed = run(1);
  options.checkpoint = {};
  options.resume = false;
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  EXPECT_LE(distance(run(1).values, resumed.values), 1e-12);
}

TEST_F(Downpour, RefusesPoliciesThatNeedARead) {
  exchange(4, 1);
  for (const Policy policy : {Policy::kSync, Policy::kSsp, Policy::kBackupWorkers}) {
    options.servers.policy.kind = policy;
    EXPECT_THAT(try_run(2).status().message(), HasSubstr("need a read before each push"));
  }
  options.servers.policy = {.compensation = Compensation::kDelay};
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("need a read before each push"));
  options.servers.policy = {};
  options.record = folder;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("fetch_every = push_every = 1 only"));
}

}  // namespace
}  // namespace stormo::train
