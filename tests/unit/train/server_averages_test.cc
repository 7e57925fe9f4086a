// Parameters that servers average, on ranks that are threads: the bits of ranks that average by
// themselves, what is saved, and what is refused. Server processes: tests/multiproc.
#include <string>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/step/strategy.h>

#include "trainer_run.h"

namespace stormo::train {
namespace {

using test::distance;
using testing::HasSubstr;
using Policy = protocol::PolicyOptions::Kind;

class ServerAverages : public test::TrainerRun {
 protected:
  ServerAverages() : TrainerRun("stormo_server_averages_") {
    options.optimizer = {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
    options.global_batch = 13;  // 4, 4 and 5 on 3 ranks; the last one of an epoch has 5
    options.steps = 22;
  }
  void average_by_servers(int period) {
    options.strategy = {.kind = Strategy::Kind::kParameterServer, .period = period};
    options.servers.policy.kind = Policy::kAverage;
  }
  void average_by_ranks(int period) {
    options.strategy = {.kind = Strategy::Kind::kParameterAveraging, .period = period};
    options.servers.policy = {};
  }
  test::Values by_ranks(int ranks, int period) {
    average_by_ranks(period);
    test::Values out = run(ranks).values;
    average_by_servers(period);
    return out;
  }
};

TEST_F(ServerAverages, HaveTheBitsOfAnAllReduce) {
  using Kind = OptimizerOptions::Kind;
  for (const auto kind : {Kind::kSgd, Kind::kAdamW, Kind::kLamb}) {
    options.optimizer.kind = kind;
    options.optimizer.lr = kind == Kind::kSgd ? 0.05 : 0.01;
    for (const auto& [ranks, period] : {std::pair{2, 1}, {3, 4}, {4, 3}, {3, 100}}) {
      const test::Values expected = by_ranks(ranks, period);
      EXPECT_EQ(distance(run(ranks).values, expected), 0)
          << static_cast<int>(kind) << ", " << ranks << " ranks, period " << period;
    }
  }
}

TEST_F(ServerAverages, DoNotDependOnWhereParametersLie) {
  const test::Values expected = by_ranks(3, 4);
  for (const int shards : {1, 2, 5}) {
    options.servers.count = shards;
    for (const auto rule : {server::PlacementRule::kGreedy, server::PlacementRule::kSliced}) {
      options.servers.placement = rule;
      EXPECT_EQ(distance(run(3).values, expected), 0) << shards << " shards";
    }
  }
}

// Workers meet where a period ends: else one more average would begin the next one there.
TEST_F(ServerAverages, EvaluateAndSaveAsRanksDo) {
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.eval_every = 8;
  options.checkpoint = {.directory = folder, .every = 12};
  average_by_ranks(4);
  const Outcome ranks = run(3);
  options.overwrite = true;
  average_by_servers(4);
  const Outcome servers = run(3);
  EXPECT_EQ(distance(servers.values, ranks.values), 0);
  ASSERT_EQ(servers.evals.size(), ranks.evals.size());
  for (std::size_t i = 0; i < ranks.evals.size(); ++i) {
    EXPECT_EQ(servers.evals[i].loss, ranks.evals[i].loss) << i;
  }
  // after 4, 8, 12, 16, 20 and 22, at each of three shards
  EXPECT_EQ(servers.end.staleness[1].gradients, 6 * 3);
  EXPECT_EQ(servers.end.staleness[1].max, 0) << "nobody reads before all have pushed";
}

TEST_F(ServerAverages, GoOnFromACheckpointInTheSameBitsAlsoByRanks) {
  accepted_changes = {"strategy.kind"};
  for (const auto kind : {OptimizerOptions::Kind::kSgd, OptimizerOptions::Kind::kAdamW}) {
    options.optimizer.kind = kind;
    options.optimizer.lr = 0.01;
    options.resume = false;
    options.overwrite = true;
    options.steps = 22;
    options.checkpoint = {.directory = folder, .every = 8};
    average_by_servers(4);
    const std::string whole = run(3).end.weights_hash;
    for (const bool servers : {true, false}) {
      options.steps = 8;
      options.resume = false;
      options.overwrite = true;
      average_by_servers(4);
      (void)run(3);
      options.overwrite = false;
      options.resume = true;
      options.steps = 22;
      servers ? average_by_servers(4) : average_by_ranks(4);
      EXPECT_EQ(run(3).end.weights_hash, whole) << static_cast<int>(kind) << ", " << servers;
    }
  }
}

TEST_F(ServerAverages, OfOneWorkerAreTheRunOfOneProcess) {
  average_by_servers(3);
  const test::Values served = run(1).values;
  options.strategy = {.kind = Strategy::Kind::kOneDevice};
  options.servers.policy = {};
  EXPECT_LE(distance(run(1).values, served), 1e-15);
}

TEST_F(ServerAverages, WorkersTrainByThemselvesInBetween) {
  std::vector<std::string> done;
  on_action = [&](Rank rank, const plan::Action& a) {
    if (rank == 0) done.push_back(to_text(a));
  };
  options.steps = 4;
  average_by_servers(3);
  (void)run(2);
  const std::vector<std::string> step = {"load", "forward 0-0", "loss", "backward 0-0",
                                         "update 0-5"};
  std::vector<std::string> expected;
  for (int i = 1; i <= 4; ++i) {
    const bool pulls = i == 1 || i == 4, averages = i >= 3;
    expected.push_back(step[0]);
    if (pulls) expected.emplace_back("pull 0-5 over dp every 3");
    expected.insert(expected.end(), step.begin() + 1, step.end());
    if (averages) expected.emplace_back("average 0-5 over dp every 3");
  }
  EXPECT_EQ(done, expected);
}

TEST_F(ServerAverages, RefuseWhatHasNoMeaning) {
  average_by_servers(4);
  options.strategy.exchange_periods = {.fetch = 2, .push = 2};
  options.strategy.worker_ranks = 2;
  options.servers.updates = server::ShardUpdates::kInPlace;
  options.balance_by_speed = true;
  options.record = folder + "/record";
  const std::string refused = check_server_averages(options).message();
  for (const char* part :
       {"leave out fetch_every and push_every", "leave out worker_ranks",
        "leave out strategy.updates", "leave out data.balance_by_speed", "leave out --record"}) {
    EXPECT_THAT(refused, HasSubstr(part));
    EXPECT_THAT(try_run(2).status().message(), HasSubstr(part));
  }
  options.servers.policy.kind = Policy::kSync;
  EXPECT_TRUE(check_server_averages(options).ok()) << "of another policy";
  average_by_servers(4);
  options.averaging.max_distance = 1;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("does not use strategy.max_distance"));
}

TEST_F(ServerAverages, RefuseToCompensateForStaleness) {
  average_by_servers(4);
  options.servers.policy.compensation = protocol::Compensation::kInverseStaleness;
  EXPECT_THAT(try_run(2).status().message(), HasSubstr("leave out the compensation"));
}

}  // namespace
}  // namespace stormo::train
