// Workers of parameter servers that are several ranks: they train as one process with the batch of
// all of them, and the ranks of a worker have the same bits.
#include <algorithm>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/server/process/shard_server.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/worker/rank_session.h>

#include "tests/unit/train/plan_run.h"
#include "trainer_run.h"

namespace stormo::train {
namespace {

using Policy = protocol::PolicyOptions::Kind;
using test::PlanRun;
using test::Problem;
using testing::HasSubstr;

TrainerOptions with_momentum() {
  TrainerOptions options;
  options.optimizer = {.lr = 0.1, .momentum = 0.9};
  options.servers.policy.kind = Policy::kSync;
  return options;
}

/// Batches of which some ranks get more rows than others, some none, and in the last one a whole
/// worker none.
PlanRun run_of(const Problem& problem, const parallel::Pass& pass, int ranks) {
  std::vector<test::Batch> batches = problem.batches(4, 13);
  batches.push_back(batches[0].rows(0, 3));
  batches.push_back(batches[1].rows(0, 1));
  return {.plan = parallel::compose(parallel::one_device(problem.model(3)->shape()), {pass})
                      .take_or_throw(),
          .hosts = {ranks},
          .problem = problem,
          .batches = std::move(batches),
          .options = with_momentum()};
}

TEST(WorkerRanks, OfWorkersThatWaitTrainAsOneProcessWithTheirBatch) {
  for (const Problem& problem : {test::mlp_problem(), test::cnn_problem(), test::gpt_problem()}) {
    const auto alone = test::train_by_plan(run_of(problem, parallel::parameter_server(1), 1));
    for (const auto& [workers, ranks] : {std::pair{2, 2}, {1, 3}, {3, 2}}) {
      const auto all = test::train_by_plan(
          run_of(problem, parallel::parameter_server(workers, {}, ranks), workers * ranks));
      for (const test::PlanResult& r : all) {
        test::expect_near(r.values, alone[0].values, 1e-10, problem.name);
        test::expect_near(r.values, all[0].values, 0, problem.name);
      }
    }
  }
}

// What the ranks of a worker compute with, not only what they show at the end.
TEST(WorkerRanks, HaveTheSameBitsInEveryStepWithoutWaitingForOthers) {
  for (const parallel::ExchangePeriods every :
       {parallel::ExchangePeriods{}, {.fetch = 3, .push = 2}}) {
    PlanRun run = run_of(test::mlp_problem(), parallel::parameter_server(2, every, 2), 4);
    run.options.servers.policy.kind = Policy::kAsync;
    run.options.strategy.exchange_periods = every;
    std::vector<std::vector<test::Values>> used(4);
    test::on_plan_ranks(run, [&](test::PlanRank& rank) {
      rank.done = [&](const plan::Action& a) {
        if (a.kind != plan::ActionKind::kForward) return;
        used[static_cast<std::size_t>(rank.rank())].push_back(test::values_of(*rank.chain));
      };
      for (std::size_t i = 0; i < run.batches.size(); ++i) {
        rank.at = {.number = static_cast<std::int64_t>(i) + 1,
                   .closes = i + 1 == run.batches.size()};
        rank.steps(1);
      }
      throw_if_error(rank.groups.world().barrier());
    });
    for (const std::size_t worker : {0u, 2u}) {
      ASSERT_EQ(used[worker].size(), run.batches.size());
      for (std::size_t i = 0; i < run.batches.size(); ++i) {
        test::expect_near(used[worker + 1][i], used[worker][i], 0, "step " + std::to_string(i));
      }
    }
  }
}

/// A worker of a server in a thread; its two ranks are on two hosts, so that bytes are counted.
TEST(WorkerRanks, SendWhatThePlanSays) {
  PlanRun run = run_of(test::mlp_problem(), parallel::parameter_server(1, {}, 2), 2);
  run.batches.pop_back();  // one rank has none of it
  run.hosts = {1, 1};
  const auto alone = test::train_by_plan([&] {
    PlanRun one = run_of(run.problem, parallel::parameter_server(1), 1);
    one.batches = run.batches;
    return one;
  }());
  const auto server =
      server::ShardServer::listen({.address = {"127.0.0.1", 0}, .on_event = {}}).take_or_throw();
  Status served;
  std::thread serving([&] { served = server->serve(-1); });
  std::vector<test::PlanResult> results(2);
  auto group = comm::make_hosts(run.hosts);
  test::on_ranks(group, [&](comm::Communicator& world) {
    std::shared_ptr<server::WorkerSession> first;
    if (world.rank() == 0) {
      first = server::WorkerSession::connect({.servers = {server->address()}, .on_event = {}},
                                             Deadline::after(std::chrono::seconds(20)))
                  .take_or_throw();
    }
    const auto session = std::make_shared<RankSession>(RankSession::Place{}, first);
    session->use(world);
    PlanRun mine = run;
    mine.options.session = session;
    const AxisGroups groups(world, run.plan.mesh, {});
    test::PlanRank rank(mine, groups, run.problem.model(3));
    rank.store();
    throw_if_error(session->ledger().deal({.steps = run.batches.size()}));
    throw_if_error(session->open());
    throw_if_error(rank.store().served()->join());
    test::PlanResult& result = results[static_cast<std::size_t>(world.rank())];
    rank.runner();
    for (std::size_t i = 0; i < run.batches.size(); ++i) {
      const std::uint64_t before = groups.bytes_sent();
      rank.steps(1);
      result.sent.push_back(groups.bytes_sent() - before);
    }
    result.trace = rank.trace;
    throw_if_error(rank.store().served()->leave());
    result.values = rank.values();
    rank.store().keep_values();
    rank.end();
    throw_if_error(session->ledger().leave());
    throw_if_error(session->finish());
  });
  serving.join();
  EXPECT_TRUE(served.ok()) << served.to_string();
  analysis::StepSizes sizes = step_sizes_of(run.options);
  sizes.agreed_numbers = 0;  // no run, no agreement
  comm::CollectiveModel model({}, comm::Selection::defaults());
  const auto cost =
      analysis::cost(run.plan, run.hosts, sizes, [&](const auto& hosts, const auto& c) {
        return model.traffic(hosts, c);
      }).take_or_throw();
  for (std::size_t r = 0; r < 2; ++r) {
    test::expect_trace(results[r].trace, project(run.plan, static_cast<Rank>(r)),
                       run.batches.size());
    test::expect_near(results[r].values, alone[0].values, 1e-10, "one process");
    EXPECT_GT(cost.ranks[r].between_hosts, 0);
    for (const std::uint64_t sent : results[r].sent) {
      EXPECT_EQ(sent, static_cast<std::uint64_t>(cost.ranks[r].between_hosts)) << "rank " << r;
    }
  }
}

/// One worker of all ranks: threads have no launcher to connect groups of some with.
class OneWorkerOfRanks : public test::TrainerRun {
 protected:
  OneWorkerOfRanks() : TrainerRun("stormo_worker_ranks_") {
    options.optimizer = {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
    options.strategy.kind = Strategy::Kind::kOneDevice;
  }
  void several(int ranks) {
    options.strategy.kind = Strategy::Kind::kParameterServer;
    options.strategy.worker_ranks = ranks;
  }
};

TEST_F(OneWorkerOfRanks, TrainsAsOneProcess) {
  options.clip_norm = 0.3;
  options.eval_every = 7;
  const Outcome alone = run(1);
  for (const Policy policy : {Policy::kSync, Policy::kAsync, Policy::kSsp, Policy::kNSoftsync}) {
    options.servers.policy = {.kind = policy};
    for (const int ranks : {2, 3}) {
      several(ranks);
      const Outcome served = run(ranks);
      EXPECT_LT(test::distance(served.values, alone.values), 1e-10);
      EXPECT_NEAR(*served.end.val_loss, *alone.end.val_loss, 1e-10);
      EXPECT_EQ(served.end.ranks, ranks);
      EXPECT_EQ(served.end.staleness.size(), 1u);
      EXPECT_EQ(served.evals.size(), alone.evals.size());
    }
  }
}

TEST_F(OneWorkerOfRanks, GoesOnFromItsCheckpointAndFromThatOfOneProcess) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdam, .lr = 0.01};
  const Outcome unbroken = run(1);
  options.checkpoint = {.directory = folder};
  for (const auto& [first, second] : {std::pair{2, 2}, {1, 2}, {2, 1}}) {
    several(first);
    options.steps = 10;
    options.overwrite = true;
    options.resume = false;
    (void)run(first);
    several(second);
    options.steps = 20;
    options.overwrite = false;
    options.resume = true;
    EXPECT_LT(test::distance(run(second).values, unbroken.values), 1e-10);
  }
}

TEST_F(OneWorkerOfRanks, TrainsCopiesBetweenPullsAndPushes) {
  options.optimizer = {.lr = 0.05};
  const Outcome alone = run(1);
  several(2);
  for (const auto& [fetch, push] : {std::pair{5, 1}, {4, 4}, {8, 4}}) {
    options.strategy.exchange_periods = {fetch, push};
    EXPECT_LT(test::distance(run(2).values, alone.values), 1e-10) << fetch << ", " << push;
  }
}

TEST_F(OneWorkerOfRanks, RefusesWhatItCannotDo) {
  several(2);
  EXPECT_THAT(try_run(3).status().message(), HasSubstr("3 ranks are no multiple of that"));
  options.record = folder;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("leave out worker_ranks, or --record"));
  options.record.clear();
  options.servers.updates = server::ShardUpdates::kInPlace;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("leave out worker_ranks, or strategy.upd"));
  options.servers.updates = server::ShardUpdates::kVersions;
  options.strategy.kind = Strategy::Kind::kElasticAveraging;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("does not use strategy.worker_ranks"));
}

}  // namespace
}  // namespace stormo::train
