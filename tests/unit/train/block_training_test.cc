// A small net, trained by blocks that a scheduler chooses.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/nn/functional/loss.h>
#include <torch/nn/modules.h>
#include <torch/optim/sgd.h>
#include <torch/utils.h>

#include <mutex>
#include <numeric>
#include <optional>

#include <stormo/base/rng.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/train/blocks/block_training.h>

#include "tests/unit/strads/runs.h"

namespace stormo::train {
namespace {

using protocol::Scheduler;
using strads::RoundsRun;

/// 240 samples of 3 classes around 12 centres, in 10 dimensions.
std::shared_ptr<const data::Dataset> clouds() {
  torch::manual_seed(5);
  const auto options = torch::TensorOptions(torch::kFloat64);
  const torch::Tensor centres = 2 * torch::randn({12, 10}, options);
  const torch::Tensor of = torch::arange(240) % 12;
  const torch::Tensor input = centres.index_select(0, of) + torch::randn({240, 10}, options);
  return data::TensorDataset::create(input, of % 3, torch::kFloat64).take_or_throw();
}

Task net(std::int64_t hidden = 24) {
  torch::manual_seed(7);
  torch::nn::Sequential layers(torch::nn::Linear(10, hidden), torch::nn::ReLU(),
                               torch::nn::Linear(hidden, 3));
  layers->to(torch::kFloat64);
  Task task;
  task.module = layers.ptr();
  task.forward = [layers](const torch::Tensor& input) mutable { return layers->forward(input); };
  task.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target);
  };
  return task;
}

strads::MakeProgram<BlockTraining> training_of(const data::Dataset& data,
                                               BlockTrainingOptions options = {}) {
  return [&data, options](int worker, int workers) {
    return BlockTraining::make(net(), data, options, worker, workers).take_or_throw();
  };
}

std::vector<std::int64_t> all_blocks(const BlockTraining& training) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(training.blocks()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

std::vector<double> values_of(const BlockTraining& training) {
  const auto all = all_blocks(training);
  std::vector<double> zero(training.part_size(all));
  zero.back() = 1;  // sample
  std::vector<double> values(training.value_size(all)), changes(all.size());
  training.aggregate(all, zero, values, changes);
  return values;
}

TEST(BlockTraining, AllBlocksInEveryRoundAreGradientDescent) {
  const auto data = clouds();
  const Task task = net();
  torch::optim::SGD sgd(task.module->parameters(), 0.3);
  std::vector<std::int64_t> all(240);
  for (std::size_t i = 0; i < 240; ++i) all[i] = static_cast<std::int64_t>(i);
  const data::Batch batch = data->get(all, 0);
  for (int step = 0; step < 40; ++step) {
    sgd.zero_grad();
    task.loss(task.forward(batch.input), batch.target).backward();
    sgd.step();
  }
  std::vector<double> expected;
  for (const torch::Tensor& p : task.module->parameters()) {
    const torch::Tensor flat = p.detach().flatten();
    expected.insert(expected.end(), flat.data_ptr<double>(),
                    flat.data_ptr<double>() + flat.numel());
  }
  for (const int workers : {1, 2, 4}) {
    const protocol::ScheduleOptions options{.blocks = 24 + 1 + 3 + 1,
                                            .rotation = protocol::all_in_turn(29, 29)};
    RoundsRun run = strads::virtual_run(training_of(*data, {.rate = 0.3}),
                                        Scheduler::make(options).take_or_throw(), workers);
    throw_if_error(run.go_on(40));
    ASSERT_THAT(values_of(strads::worker_of<BlockTraining>(run, workers - 1)),
                ::testing::Pointwise(::testing::DoubleNear(1e-10), expected));
  }
}

/// 13 rounds of a rotation: 6 batches of 37, one of 18, and again.
std::vector<double> values_after_batches(const data::Dataset& data, int workers, double& loss) {
  const protocol::ScheduleOptions options{.blocks = 29, .rotation = protocol::all_in_turn(29, 6)};
  RoundsRun run = strads::virtual_run(training_of(data, {.rate = 0.3, .batch = 37}),
                                      Scheduler::make(options).take_or_throw(), workers);
  throw_if_error(run.go_on(13));
  EXPECT_EQ(strads::worker_of<BlockTraining>(run, workers - 1).samples(), 240 + 6 * 37);
  loss = run.judge().take_or_throw().objective;
  return values_of(strads::worker_of<BlockTraining>(run, 0));
}

TEST(BlockTraining, ABatchDoesNotDependOnTheNumberOfWorkers) {
  const auto data = clouds();
  double alone = 0;
  const std::vector<double> expected = values_after_batches(*data, 1, alone);
  for (const int workers : {2, 5, 7}) {
    double loss = 0;
    EXPECT_THAT(values_after_batches(*data, workers, loss),
                ::testing::Pointwise(::testing::DoubleNear(1e-10), expected));
    EXPECT_NEAR(loss, alone, 1e-10);
  }
}

TEST(BlockTraining, GoesOnAsIfItHadNotEnded) {
  const auto data = clouds();
  const auto make = training_of(*data, {.rate = 0.3, .batch = 37});
  const protocol::ScheduleOptions options{.blocks = 29, .round = 4};
  RoundsRun run = strads::virtual_run(make, Scheduler::make(options).take_or_throw(), 2);
  throw_if_error(run.go_on(10));
  auto& ended = strads::worker_of<BlockTraining>(run, 0);
  RoundsRun second = strads::virtual_run(
      make, Scheduler::make(options, nullptr, run.scheduler().state()).take_or_throw(), 2);
  for (int worker : {0, 1}) {
    auto& training = strads::worker_of<BlockTraining>(second, worker);
    training.set(all_blocks(training), values_of(ended));
    training.go_on_from(ended.samples());
  }
  second.count_from(run.updates(), run.order_hash());
  throw_if_error(run.go_on(30));
  throw_if_error(second.go_on(30));
  EXPECT_EQ(second.updates(), run.updates());
  EXPECT_EQ(second.order_hash(), run.order_hash());
  EXPECT_EQ(values_of(strads::worker_of<BlockTraining>(second, 1)), values_of(ended));
}

TEST(BlockTraining, RanksAndVirtualTimeGiveTheSameBits) {
  const auto data = clouds();
  const auto make = training_of(*data, {.rate = 0.3, .batch = 20});
  const Scheduler scheduler =
      Scheduler::make({.blocks = 29, .round = 4, .depth = 1}).take_or_throw();
  RoundsRun simulated = strads::virtual_run(make, scheduler, 2, {.slowness = {7}});
  throw_if_error(simulated.go_on(60));
  const auto expected = values_of(strads::worker_of<BlockTraining>(simulated, 0));
  std::mutex mutex;
  const strads::MakeProgram<BlockTraining> one_at_a_time = [&](int worker, int workers) {
    const std::lock_guard lock(mutex);  // the seed is of the process
    return make(worker, workers);
  };
  strads::run_ranks<BlockTraining>(one_at_a_time, scheduler, 2, 60,
                                   [&](const BlockTraining& training, const auto& run) {
                                     EXPECT_EQ(run.order_hash(), simulated.order_hash());
                                     EXPECT_EQ(values_of(training), expected);
                                   });
}

TEST(BlockTraining, ARoundIsItsPlan) {
  const auto data = clouds();
  for (const int depth : {0, 2}) {
    RoundsRun run = strads::virtual_run(
        training_of(*data, {.batch = 20}),
        Scheduler::make({.blocks = 29, .round = 4, .depth = depth}).take_or_throw(), 2);
    std::vector<std::string> done;
    run.on_done([&done](const plan::Action& a) { done.push_back(to_text(a)); });
    throw_if_error(run.go_on(5));
    ASSERT_TRUE(run.judge().ok());
    EXPECT_EQ(done, strads::said_by(run.plan(), 5));
    EXPECT_EQ(num_elements(run.plan().model), 10 * 24 + 24 + 24 * 3 + 3);
  }
}

/// By the first gradients over all samples.
std::shared_ptr<const protocol::Conflicts> first_conflicts(
    const strads::MakeProgram<BlockTraining>& make, double threshold) {
  const auto training = make(0, 1);
  std::vector<double> part(training->part_size(all_blocks(*training)));
  training->all_gradients(part);
  return std::make_shared<const protocol::Conflicts>(
      training->correlated_gradients(part, threshold));
}

/// Updates of blocks until the loss is reached; nothing: not in so many rounds.
std::optional<std::int64_t> updates_until(double loss, RoundsRun run, std::int64_t most) {
  for (std::int64_t rounds = 1; rounds <= most; ++rounds) {
    throw_if_error(run.go_on(rounds));
    if (run.judge().take_or_throw().objective <= loss) return run.updates();
  }
  return std::nullopt;
}

TEST(BlockTraining, ReachesTheSameLossInFewerUpdatesThanRoundRobin) {
  const auto data = clouds();
  const auto make = training_of(*data, {.rate = 0.5});
  const auto conflicts = first_conflicts(make, 0.5);
  const auto updates = [&](double loss, const protocol::ScheduleOptions& options,
                           const std::shared_ptr<const protocol::Conflicts>& checked) {
    const auto scheduler = Scheduler::make(options, checked).take_or_throw();
    return static_cast<double>(
        updates_until(loss, strads::virtual_run(make, scheduler), 1000).value_or(1e9));
  };
  for (const double loss : {0.5, 0.2, 0.1}) {
    const double turns =
        updates(loss, {.blocks = 29, .rotation = protocol::all_in_turn(29, 4)}, nullptr);
    EXPECT_LT(turns, 1e9);
    EXPECT_LT(updates(loss, {.blocks = 29, .round = 4}, nullptr), 0.8 * turns);
    EXPECT_LT(updates(loss, {.blocks = 29, .round = 4}, conflicts), 0.8 * turns);
  }
}

TEST(BlockTraining, TheCheckPermitsARateAtWhichUncheckedRoundsDiverge) {
  const auto data = clouds();
  const auto make = training_of(*data, {.rate = 4});
  const auto conflicts = first_conflicts(make, 0.2);
  int checked = 0, unchecked = 0;
  for (std::uint64_t seed = 1; seed <= 8; ++seed) {
    const auto reaches = [&](const std::shared_ptr<const protocol::Conflicts>& with) {
      const auto scheduler =
          Scheduler::make({.blocks = 29, .round = 8, .seed = seed}, with).take_or_throw();
      return updates_until(0.1, strads::virtual_run(make, scheduler), 300) ? 1 : 0;
    };
    checked += reaches(conflicts);
    unchecked += reaches(nullptr);
  }
  EXPECT_GE(checked, 7);
  EXPECT_LE(unchecked, 1);
}

TEST(BlockTraining, ConflictsAreUnitsOfALayerWhoseGradientsPointTheSameWay) {
  const auto data = clouds();
  const auto training = training_of(*data)(0, 1);
  ASSERT_EQ(training->blocks(), 24 + 1 + 3 + 1);  // units, biases, units, biases
  std::vector<double> sums(training->part_size(all_blocks(*training)));
  Rng rng(1, "test");
  for (double& value : sums) value = rng.uniform() - 0.5;
  for (std::size_t i = 0; i < 10; ++i) {
    sums[10 * 3 + i] = -2 * sums[10 * 7 + i];  // units 3 and 7
    sums[10 * 5 + i] = 0;                      // has no gradient, like no other
  }
  const protocol::Conflicts conflicts = training->correlated_gradients(sums, 0.999);
  EXPECT_EQ(conflicts.pairs(), 1);
  EXPECT_THAT(conflicts.of_block(3), ::testing::ElementsAre(7));
  // all pairs of units of the same layer, but for the one without a gradient
  EXPECT_EQ(training->correlated_gradients(sums, 1e-9).pairs(), 23 * 22 / 2 + 3 * 2 / 2);
}

TEST(BlockTraining, BlocksOfSeveralUnitsCoverEverything) {
  const auto data = clouds();
  const auto training = training_of(*data, {.units = 5})(0, 1);
  EXPECT_EQ(training->blocks(), 5 + 1 + 1 + 1);
  EXPECT_EQ(values_of(*training), values_of(*training_of(*data)(0, 1)));
}

TEST(BlockTraining, SaysWhatIsWrong) {
  const auto data = clouds();
  const auto wrong = [&](const BlockTrainingOptions& options, int workers, Task task) {
    return BlockTraining::make(std::move(task), *data, options, 0, workers).status().message();
  };
  EXPECT_THAT(wrong({.rate = 0, .batch = -1, .units = 0}, 1, net()),
              ::testing::AllOf(::testing::HasSubstr("rate:"), ::testing::HasSubstr("batch:"),
                               ::testing::HasSubstr("units:")));
  EXPECT_THAT(wrong({.batch = 1}, 241, net()),
              ::testing::HasSubstr("no samples are left for a worker: there are 240 for 241"));
  EXPECT_THAT(wrong({.batch = 3}, 4, net()),
              ::testing::HasSubstr("batch: 3 samples are fewer than one for each of 4 workers"));
  Task frozen = net();
  for (torch::Tensor& p : frozen.module->parameters()) p.set_requires_grad(false);
  EXPECT_THAT(wrong({}, 1, frozen), ::testing::HasSubstr("no parameters to train"));
}

}  // namespace
}  // namespace stormo::train
