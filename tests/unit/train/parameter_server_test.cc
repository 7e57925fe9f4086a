// Training with parameter servers on ranks that are threads: what it must be equal to, and what is
// refused.
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/base/rng.h>
#include <stormo/server/ledger/record_times.h>
#include <stormo/server/ledger/shard_record.h>
#include <stormo/train/record/replay.h>
#include <stormo/train/record/run_record.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/server_store/served_parameters.h>
#include <stormo/train/simulate/simulated_training.h>
#include <stormo/train/state/checkpoint.h>

#include "toy.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using protocol::Compensation;
using protocol::PolicyOptions;
using test::make_toy_module;
using test::toy_task;
using test::ToyDataset;
using test::ToyModule;
using testing::HasSubstr;
using Policy = PolicyOptions::Kind;
using test::distance;
using test::Values;
using test::values_of;

class ParameterServer : public test::TrainerRun {
 protected:
  ParameterServer() : TrainerRun("stormo_servers_") {
    options.optimizer = {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
    options.strategy.kind = Strategy::Kind::kParameterServer;
  }
  /// The events of a run that was recorded, by worker.
  std::vector<std::vector<server::ShardEvent>> recorded(int workers) const {
    std::vector<std::vector<server::ShardEvent>> events;
    for (int w = 0; w < workers; ++w) {
      events.push_back(server::read_shard_record(server::record_path(folder, w),
                                                 server::record_origin(fnv1a("{}"), w))
                           .take_or_throw());
    }
    return events;
  }
};

TEST_F(ParameterServer, SyncIsTheMirroredRun) {
  for (const auto kind : {OptimizerOptions::Kind::kSgd, OptimizerOptions::Kind::kAdamW,
                          OptimizerOptions::Kind::kLars, OptimizerOptions::Kind::kLamb}) {
    options.optimizer.kind = kind;
    options.servers = {};
    options.strategy.kind = Strategy::Kind::kMirrored;
    const Outcome mirrored = run(3);
    options.servers.policy.kind = Policy::kSync;
    options.strategy.kind = Strategy::Kind::kParameterServer;
    for (const int servers : {0, 1, 6}) {
      options.servers.count = servers;
      const Outcome served = run(3);
      EXPECT_LT(distance(served.values, mirrored.values), 1e-12) << servers << " servers";
      EXPECT_NEAR(*served.end.val_loss, *mirrored.end.val_loss, 1e-12);
      EXPECT_EQ(served.end.steps, 20);
      EXPECT_EQ(served.end.samples, 240);
      ASSERT_EQ(served.end.staleness.size(), 3u);
      EXPECT_EQ(served.end.staleness[1].max, 0);
      EXPECT_GT(served.end.staleness[1].gradients, 0);
    }
  }
}

TEST_F(ParameterServer, SlicedParametersGiveTheSameBits) {
  options.servers = {.policy = {.kind = Policy::kAsync}, .count = 3};
  const Outcome greedy = run(1);
  options.servers.placement = server::PlacementRule::kSliced;
  EXPECT_EQ(run(1).end.weights_hash, greedy.end.weights_hash);
}

TEST_F(ParameterServer, OneWorkerIsTheSequentialRun) {
  options.strategy.kind = Strategy::Kind::kOneDevice;
  options.clip_norm = 0.3;
  options.micro_batches = 2;
  const Outcome alone = run(1);
  options.strategy.kind = Strategy::Kind::kParameterServer;
  for (const Policy policy : {Policy::kSync, Policy::kAsync, Policy::kSsp, Policy::kNSoftsync}) {
    options.servers.policy = {.kind = policy};
    const Outcome served = run(1);
    // an average of one gradient is scaled by weight / weight
    EXPECT_LT(distance(served.values, alone.values), 1e-14);
    ASSERT_EQ(served.steps.size(), alone.steps.size());
    for (std::size_t i = 0; i < served.steps.size(); ++i) {
      EXPECT_NEAR(served.steps[i].loss, alone.steps[i].loss, 1e-12);
    }
  }
}

// The sum of lr / workers times each gradient is lr times their mean.
TEST_F(ParameterServer, SspWithoutSlackIsSync) {
  options.optimizer = {.lr = 0.1};
  options.servers.policy = {.kind = Policy::kSync};
  const Outcome sync = run(4);
  options.servers.policy = {
      .kind = Policy::kSsp, .bound = 0, .compensation = Compensation::kLearningRateOverN};
  EXPECT_LT(distance(run(4).values, sync.values), 1e-12);
}

class EachPolicy : public ParameterServer, public testing::WithParamInterface<Policy> {};
INSTANTIATE_TEST_SUITE_P(All, EachPolicy,
                         testing::Values(Policy::kSync, Policy::kAsync, Policy::kSsp,
                                         Policy::kNSoftsync, Policy::kBackupWorkers),
                         [](const auto& test) {
                           return std::string(
                               protocol::policy_names()[static_cast<std::size_t>(test.param)]);
                         });

TEST_P(EachPolicy, Learns) {
  options.servers.policy = {.kind = GetParam(), .n = 2};
  options.optimizer = {.lr = 0.1};
  options.steps = 60;
  options.eval_every = 7;
  options.checkpoint = {.directory = folder, .every = 10};
  options.verify_every = 25;
  const Outcome served = run(3);
  EXPECT_LT(served.end.train_loss, 0.8);
  EXPECT_EQ(served.end.steps, 60);
  EXPECT_EQ(served.evals.size(), 60u / 7 + 1);
  EXPECT_GT(served.evals.front().loss, served.evals.back().loss);
  EXPECT_TRUE(std::filesystem::exists(served.end.checkpoint));
}

// One slow rank, and evaluations between: nobody waits for ever, and all data are used.
TEST_P(EachPolicy, EndsWithASlowWorker) {
  options.servers.policy = {.kind = GetParam(), .bound = 2, .n = 3};
  options.eval_every = 6;
  in_loss = [](Rank rank) {
    if (rank != 1) return;
    for (const Deadline end = Deadline::after(std::chrono::milliseconds(3)); !end.expired();) {
    }
  };
  const Outcome served = run(3);
  EXPECT_EQ(served.end.samples, 240);
}

// With one worker there is one order of updates.
TEST_P(EachPolicy, ResumesBitForBit) {
  options.servers.policy = {.kind = GetParam(), .backups = 0};
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  const Outcome unbroken = run(1);
  options.checkpoint = {.directory = folder, .every = 4};
  options.steps = 8;
  (void)run(1);
  options.steps = 20;
  options.resume = true;
  EXPECT_EQ(run(1).end.weights_hash, unbroken.end.weights_hash);
}

TEST_F(ParameterServer, ItsCheckpointIsThatOfAnyStrategy) {
  accepted_changes = {"strategy.kind"};
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdam, .lr = 0.01};
  const auto use = [&](Strategy::Kind kind) {
    options.strategy.kind = kind;
    const bool served = kind == Strategy::Kind::kParameterServer;
    options.servers.policy.kind = served ? Policy::kSync : Policy::kAsync;
  };
  use(Strategy::Kind::kMirrored);
  const Outcome unbroken = run(2);
  const auto two_parts = [&](Strategy::Kind first, Strategy::Kind second) {
    options.checkpoint = {.directory = folder};
    options.steps = 10;
    options.resume = false;
    options.overwrite = true;
    use(first);
    (void)run(2);
    options.overwrite = false;
    options.resume = true;
    options.steps = 20;
    use(second);
    return run(2).values;
  };
  using Kind = Strategy::Kind;
  EXPECT_LT(distance(two_parts(Kind::kParameterServer, Kind::kMirrored), unbroken.values), 1e-10);
  EXPECT_LT(distance(two_parts(Kind::kMirrored, Kind::kParameterServer), unbroken.values), 1e-10);
}

TEST_F(ParameterServer, ASignalEndsTheRoundOfAll) {
  options.steps = 100000;
  options.checkpoint = {.directory = folder};
  in_loss = [count = std::make_shared<std::atomic<int>>(0)](Rank) {
    if (++*count == 30) std::raise(SIGTERM);
  };
  const Result<Outcome> interrupted = try_run(3);
  EXPECT_EQ(interrupted.status().code(), Code::kInterrupted);
  EXPECT_THAT(interrupted.status().message(), HasSubstr("saved in"));
  in_loss = {};
  options.resume = true;
  options.steps = 40;
  const Outcome resumed = run(3);
  EXPECT_EQ(resumed.end.steps, 40);
  EXPECT_EQ(resumed.end.samples, 40 * 12);
}

TEST_F(ParameterServer, AFailureOfOneWorkerEndsAll) {
  options.servers.policy.kind = Policy::kSync;
  in_loss = [count = std::make_shared<std::atomic<int>>(0)](Rank rank) {
    if (rank == 2 && ++*count == 5) throw std::runtime_error("a broken sample");
  };
  EXPECT_FALSE(try_run(3).ok());
}

TEST_F(ParameterServer, RefusesWhatCannotBe) {
  const auto refused = [this](int ranks) { return try_run(ranks).status().message(); };
  options.servers.count = 7;
  EXPECT_THAT(refused(2), HasSubstr("7 servers, but the model's 6 parameters"));
  options.servers = {.policy = {.kind = Policy::kNSoftsync, .n = 3}};
  EXPECT_THAT(refused(2), HasSubstr("n = 3, but must be from 1 to 2"));
  options.servers = {.policy = {.compensation = Compensation::kDelay}};
  options.optimizer.kind = OptimizerOptions::Kind::kLamb;
  EXPECT_THAT(refused(2), HasSubstr("lars and lamb scale updates by norms of gradients"));
  options.servers = {};
  options.optimizer.kind = OptimizerOptions::Kind::kSgd;
  options.gradients.bucket_bytes = 1024;
  EXPECT_THAT(refused(2), HasSubstr("does not use strategy.bucket_bytes"));
}

TEST_F(ParameterServer, NormsAreOfWholeParameters) {
  options.optimizer.kind = OptimizerOptions::Kind::kLars;
  options.servers = {.count = 2, .placement = server::PlacementRule::kSliced};
  const auto outcome = [this](std::int64_t elements) {
    const torch::Tensor small = torch::zeros({8}), other = torch::zeros({elements});
    return ServedParameters::create({{"small", small}, {"other", other}}, options, 2).status();
  };
  EXPECT_THAT(outcome(100'000).message(),
              HasSubstr("strategy.placement=sliced cuts parameter 1 over several servers; use "
                        "greedy or round_robin"));
  EXPECT_TRUE(outcome(8).ok()) << "too small to be cut";
  options.servers.placement = server::PlacementRule::kGreedy;
  EXPECT_TRUE(outcome(100'000).ok());
}

// Worker 1 pushes step k when worker 0 has pulled for step k + 1: each gradient but the first ones
// is stale by one update.
TEST_F(ParameterServer, AdaptiveDelayCompensationResumesBitForBit) {
  constexpr std::int64_t kRound = 4;  // workers meet to save
  options.servers = {
      .policy = {.kind = Policy::kAsync, .compensation = Compensation::kAdaptiveDelay, .lambda = 2},
      .count = 1};
  options.optimizer = {.lr = 0.05};
  options.checkpoint = {.directory = folder, .every = kRound};
  std::array<std::atomic<std::int64_t>, 2> begun{}, pulls{}, pushes{};
  on_action = [&](Rank rank, const plan::Action& a) {
    const auto r = static_cast<std::size_t>(rank);
    if (a.kind == plan::ActionKind::kPull) ++pulls[r];
    if (a.kind == plan::ActionKind::kPush) ++pushes[r];
  };
  in_loss = [&](Rank rank) {
    const std::int64_t step = begun[static_cast<std::size_t>(rank)]++;
    const bool ends_round = (step + 1) % kRound == 0;
    const auto is_turn = [&] {
      if (rank == 0) return pushes[1] >= step && pulls[1] >= step + 1;
      return pushes[0] >= step + 1 && pulls[0] >= step + (ends_round ? 1 : 2);
    };
    for (const Deadline end = Deadline::after(std::chrono::seconds(20)); !is_turn();) {
      if (end.expired()) throw std::runtime_error("its turn does not come");
      std::this_thread::yield();
    }
  };
  const auto run_to = [&](std::int64_t steps, bool resume) {
    for (auto* counts : {&begun, &pulls, &pushes}) {
      for (auto& count : *counts) count = 0;
    }
    options.steps = steps;
    options.resume = resume;
    options.overwrite = !resume;
    return run(2);
  };
  const Outcome unbroken = run_to(12, false);
  EXPECT_EQ(unbroken.end.staleness.at(1).max, 1u);
  EXPECT_EQ(run_to(12, false).end.weights_hash, unbroken.end.weights_hash) << "one order only";
  (void)run_to(8, false);
  EXPECT_EQ(run_to(12, true).end.weights_hash, unbroken.end.weights_hash);
  // the mean square is of no optimizer
  accepted_changes = {"strategy.kind"};
  options.strategy.kind = Strategy::Kind::kMirrored;
  options.servers = {};
  in_loss = {};
  EXPECT_EQ(run_to(16, true).end.steps, 16);
  options.strategy.kind = Strategy::Kind::kOneDevice;
  options.steps = 20;
  EXPECT_EQ(run(1).end.steps, 20);
}

// The same gradients from the same versions, in the same order: the same weights.
TEST_F(ParameterServer, ASimulationOfSyncIsTheRun) {
  options.servers.policy.kind = Policy::kSync;
  options.clip_norm = 0.3;
  const Outcome real = run(3);
  const auto module = make_toy_module(3);
  const SimulatedTraining simulated =
      simulate_training(toy_task(module), *dataset, options, {.workers = 3, .steps = 20})
          .take_or_throw();
  EXPECT_LT(distance(values_of(*module), real.values), 1e-12);
  EXPECT_EQ(simulated.steps.size(), 60u);
}

TEST_F(ParameterServer, DelayCompensationByZeroIsAsync) {
  const auto values_with = [this](const protocol::PolicyOptions& policy) {
    options.servers.policy = policy;
    const auto module = make_toy_module(3);
    throw_if_error(simulate_training(toy_task(module), *dataset, options,
                                     {.workers = 3, .steps = 20, .jitter = 0.5})
                       .status());
    return values_of(*module);
  };
  const auto async = values_with({.kind = Policy::kAsync});
  const auto compensated = [&](double lambda) {
    return values_with(
        {.kind = Policy::kAsync, .compensation = protocol::Compensation::kDelay, .lambda = lambda});
  };
  EXPECT_EQ(distance(compensated(0), async), 0);
  EXPECT_GT(distance(compensated(0.5), async), 0);
}

TEST_F(ParameterServer, ASimulationEndsWhereTheLossIsNotFinite) {
  options.servers.policy.kind = Policy::kAsync;
  const auto module = make_toy_module(3);
  Task task = toy_task(module);
  std::size_t computed = 0, told = 0;
  task.loss = [&, loss = task.loss](const torch::Tensor& output, const torch::Tensor& target) {
    return loss(output, target) / (++computed < 10 ? 1 : 0);
  };
  const SimulatedTraining simulated =
      simulate_training(task, *dataset, options, {.workers = 3, .steps = 20},
                        [&](const SimulatedTraining::Step&) { ++told; })
          .take_or_throw();
  ASSERT_TRUE(simulated.diverged);
  EXPECT_EQ(simulated.outcome.time, *simulated.diverged);
  EXPECT_EQ(simulated.steps.size(), 9u);
  EXPECT_EQ(told, 9u);
  ASSERT_FALSE(simulated.outcome.servers.empty());
  EXPECT_EQ(simulated.outcome.servers[0].version, 9u);
}

class Recorded : public ParameterServer, public testing::WithParamInterface<Policy> {};
INSTANTIATE_TEST_SUITE_P(All, Recorded,
                         testing::Values(Policy::kSync, Policy::kAsync, Policy::kSsp,
                                         Policy::kNSoftsync, Policy::kBackupWorkers),
                         [](const auto& test) {
                           return std::string(
                               protocol::policy_names()[static_cast<std::size_t>(test.param)]);
                         });

// Whatever the order of the threads was.
TEST_P(Recorded, IsReplayedBitForBit) {
  options.servers = {
      .policy = {.kind = GetParam(), .n = 2, .compensation = Compensation::kInverseStaleness},
      .count = 3};
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.clip_norm = 0.2;
  options.micro_batches = 2;
  options.eval_every = 7;
  options.record = folder;
  const Outcome real = run(8);
  auto events = recorded(8);
  EXPECT_EQ(read_run_record(folder)->weights_hash, real.end.weights_hash);
  const auto module = make_toy_module(3);
  EXPECT_EQ(replay(toy_task(module), *dataset, options, 20, events).take_or_throw(), 8 * 20);
  EXPECT_EQ(weights_hash(named_state(*module)), real.end.weights_hash);

  // a part of the record is missing, or it is of another recipe
  const auto fails = [&](const TrainerOptions& other) {
    return replay(toy_task(make_toy_module(3)), *dataset, other, 20, events).status().code();
  };
  TrainerOptions other = options;
  other.servers.count = 2;
  EXPECT_EQ(fails(other), Code::kCorrupt);
  events[2].resize(events[2].size() / 2);
  EXPECT_EQ(fails(options), Code::kCorrupt);
}

// From the record alone: no worker reads for clock c before all have finished c - s clocks, and a
// gradient is not more stale than docs/async.md says.
TEST_F(ParameterServer, TheBoundOfSspHoldsInTheRecordOfARun) {
  constexpr std::size_t kWorkers = 4;
  constexpr int kBound = 2;
  options.servers = {.policy = {.kind = Policy::kSsp, .bound = kBound}, .count = 1};
  options.steps = 40;
  options.record = folder;
  in_loss = [](Rank rank) {
    if (rank != 1) return;
    for (const Deadline end = Deadline::after(std::chrono::milliseconds(3)); !end.expired();) {
    }
  };
  (void)run(kWorkers);
  using Kind = server::ShardEvent::Kind;
  std::vector<std::pair<server::ShardEvent, std::size_t>> events;
  const auto of_workers = recorded(kWorkers);
  for (std::size_t w = 0; w < kWorkers; ++w) {
    for (const server::ShardEvent& e : of_workers[w]) events.emplace_back(e, w);
  }
  std::ranges::stable_sort(events, {}, [](const auto& e) {
    return std::pair(e.first.commit, e.first.kind == Kind::kRead);
  });
  std::array<int, kWorkers> finished{}, seen{};
  std::array<bool, kWorkers> left{};
  int updates = 0, ahead = 0, stalest = 0;
  for (const auto& [event, w] : events) {
    if (event.kind == Kind::kLeave) left[w] = true;
    if (event.kind == Kind::kRead) {
      seen[w] = updates;
      for (std::size_t other = 0; other < kWorkers; ++other) {
        if (!left[other]) ahead = std::max(ahead, finished[w] - finished[other]);
      }
    }
    if (event.kind == Kind::kPush) {
      stalest = std::max(stalest, updates++ - seen[w]);
      ++finished[w];
    }
  }
  EXPECT_EQ(updates, 4 * 40);
  EXPECT_EQ(ahead, kBound) << "also that the slow worker was waited for";
  EXPECT_LE(stalest, (2 * kBound + 1) * 3);
}

// What took how long in the run gives the same order of reads and pushes in virtual time.
TEST_F(ParameterServer, ASimulationWithTheTimesOfARunIsTheRun) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.record = folder;
  for (const Policy policy :
       {Policy::kSync, Policy::kAsync, Policy::kSsp, Policy::kNSoftsync, Policy::kBackupWorkers}) {
    // bounds that make workers wait, and a backup whose gradients are dropped
    options.servers = {.policy = {.kind = policy, .bound = 1, .n = 2, .backups = 1}, .count = 1};
    const Outcome real = run(4);
    const auto module = make_toy_module(3);
    const auto times = server::recorded_times(recorded(4)).take_or_throw();
    const auto simulated = simulate_training(
        toy_task(module), *dataset, options,
        {.workers = 4, .steps = 20, .times = times.steps, .leaves = times.leaves, .latency = {}});
    ASSERT_TRUE(simulated.ok()) << simulated.status().to_string();
    EXPECT_EQ(weights_hash(named_state(*module)), real.end.weights_hash)
        << protocol::policy_names()[static_cast<std::size_t>(policy)];
  }
}

TEST_F(ParameterServer, IsRecordedFromItsStartOnly) {
  options.record = folder;
  options.checkpoint.directory = folder;
  options.resume = true;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("a run that resumes is not recorded"));
  options.resume = false;
  options.strategy.kind = Strategy::Kind::kMirrored;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("only runs with strategy"));
}

TEST_F(ParameterServer, ASimulationUsesEverySampleOfAPool) {
  options.servers.policy.kind = Policy::kAsync;
  options.optimizer = {.lr = 0.1};
  protocol::VirtualCluster cluster{.workers = 4, .steps = 24, .pooled = true};
  cluster.slowness = {1, 1, 1, 6};
  const auto module = make_toy_module(3);
  const SimulatedTraining simulated =
      simulate_training(toy_task(module), *dataset, options, cluster).take_or_throw();
  std::int64_t samples = 0;
  for (const SimulatedTraining::Step& step : simulated.steps) samples += step.samples;
  EXPECT_EQ(samples, 24 * 12);
  EXPECT_LT(simulated.outcome.steps[3], simulated.outcome.steps[0] / 4);
  EXPECT_LT(simulated.steps.back().loss, simulated.steps.front().loss);
}

}  // namespace
}  // namespace stormo::train
