// Workers of several ranks that average parameters now and then: each worker is a replica of
// synchronous training, and all of them are what as many ranks are.
#include <filesystem>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "trainer_run.h"

namespace stormo::train {
namespace {

using enum Strategy::Kind;
using test::distance;
using testing::HasSubstr;

struct Way {
  std::string name;
  Strategy strategy;
};

std::vector<Way> all_ways() {
  using Outer = parallel::OuterOptimizer;
  const Outer nesterov{.kind = Outer::Kind::kNesterov};
  return {{"averages", {.kind = kParameterAveraging, .period = 3}},
          {"state_periods", {.kind = kParameterAveraging, .period = 3, .state_periods = {6}}},
          {"diloco", {.kind = kParameterAveraging, .period = 4, .outer = nesterov}},
          {"streaming",
           {.kind = kParameterAveraging,
            .period = 4,
            .outer = nesterov,
            .streaming = {.fragments = 2, .delay = 1}}}};
}

class AveragedWorkers : public test::TrainerRun, public testing::WithParamInterface<Way> {
 protected:
  AveragedWorkers() : TrainerRun("stormo_averaged_workers_") {
    options.global_batch = 13;  // also 5, of which some rank has none
    options.optimizer = {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
  }
  void train_by(const Way& way, int worker_ranks) {
    options.strategy = way.strategy;
    options.strategy.worker_ranks = worker_ranks;
  }
};
INSTANTIATE_TEST_SUITE_P(All, AveragedWorkers, testing::ValuesIn(all_ways()),
                         [](const auto& test) { return test.param.name; });

TEST_P(AveragedWorkers, TrainAsRanksWithTheirSamples) {
  options.clip_norm = 0.5;
  train_by(GetParam(), 1);
  const Outcome of_three = run(3);
  train_by(GetParam(), 2);
  EXPECT_LE(distance(run(6).values, of_three.values), 1e-12);
  EXPECT_GT(distance(run(4).values, of_three.values), 1e-6) << "2 workers are not 3";
  options.global_batch = 16;  // of which a half goes to the first four of eight ranks
  train_by(GetParam(), 1);
  const Outcome of_two = run(2);
  train_by(GetParam(), 4);
  EXPECT_LE(distance(run(8).values, of_two.values), 1e-12);
}

// The position and all state are those of a replica, whatever its ranks are.
TEST_P(AveragedWorkers, GoOnAsOtherNumbersOfRanks) {
  options.checkpoint.directory = folder;
  options.steps = 12;  // whole periods
  train_by(GetParam(), 2);
  const Outcome all = run(4);
  options.steps = 24;
  options.overwrite = true;
  train_by(GetParam(), 1);
  accepted_changes = {"strategy.worker_ranks"};
  const Outcome resumed_by_two = resumed(2);
  std::filesystem::remove_all(folder);
  options.steps = 12;
  EXPECT_LE(distance(run(2).values, all.values), 1e-12);
  options.steps = 24;
  EXPECT_LE(distance(resumed(2).values, resumed_by_two.values), 1e-10);
}

using OneWorker = AveragedWorkers;

TEST_F(OneWorker, IsSynchronousTraining) {
  options.strategy = {.kind = kParameterAveraging, .worker_ranks = 3, .period = 4};
  const Outcome one = run(3);
  options.strategy = {.kind = kMirrored, .parameters = Strategy::Parameters::kReplicated};
  EXPECT_LE(distance(one.values, run(3).values), 1e-12);
}

TEST_F(OneWorker, IsOfAllItsRanks) {
  options.strategy = {.kind = kParameterAveraging, .worker_ranks = 2, .period = 4};
  EXPECT_THAT(try_run(3).status().message(), HasSubstr("3 ranks are no multiple of that"));
}

}  // namespace
}  // namespace stormo::train
