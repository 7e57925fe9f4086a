// Training a table with sparse gradients on servers that update in place: what it must be equal to,
// and what is refused.
#include <unistd.h>

#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/run/trainer.h>
#include <stormo/train/simulate/simulated_training.h>

#include "sharded_problem.h"
#include "words.h"

namespace stormo::train {
namespace {

using protocol::PolicyOptions;
using test::kUsedWords;
using test::Words;
using test::WordsDataset;
using testing::HasSubstr;
using Rule = OptimizerOptions::Kind;

std::shared_ptr<Words> make_words() {
  static std::mutex making;  // the generator that the values come from is that of the process
  const std::lock_guard lock(making);
  torch::manual_seed(3);
  auto words = std::make_shared<Words>();
  words->to(torch::kFloat64);
  return words;
}

Task words_task(const std::shared_ptr<Words>& words) {
  Task task;
  task.module = words;
  task.forward = [words](const torch::Tensor& x) { return words->out(words->table(x).sum(1)); };
  task.loss = [](const torch::Tensor& y, const torch::Tensor& t) {
    return (y - t).square().mean();
  };
  return task;
}

class InPlaceServers : public testing::Test {
 protected:
  InPlaceServers() : folder(testing::TempDir() + "stormo_in_place_" + std::to_string(getpid())) {
    std::filesystem::remove_all(folder);
    options.steps = 20;
    options.global_batch = 12;
    options.optimizer = {.lr = 0.1};
    in_place();
  }
  ~InPlaceServers() override { std::filesystem::remove_all(folder); }

  void in_place() {
    options.strategy = {.kind = Strategy::Kind::kParameterServer};
    options.servers = {.updates = server::ShardUpdates::kInPlace};
  }

  struct Outcome {
    observe::EndRecord end;
    std::vector<torch::Tensor> values;  // table, weight and bias
  };
  Result<Outcome> try_run(int ranks) {
    std::vector<Result<Outcome>> outcomes(static_cast<std::size_t>(ranks), Outcome());
    auto group = comm::make_inproc_group(ranks).take_or_throw();
    test::on_ranks(group, [&](comm::Communicator& world) {
      outcomes[static_cast<std::size_t>(world.rank())] = run_rank(world);
    });
    for (const auto& o : outcomes) {
      EXPECT_EQ(o.ok(), outcomes[0].ok());
      if (!o.ok()) continue;
      EXPECT_EQ(o->end.weights_hash, outcomes[0]->end.weights_hash);
    }
    return std::move(outcomes[0]);
  }
  Outcome run(int ranks) { return try_run(ranks).take_or_throw(); }
  std::string refused(int ranks = 2) { return try_run(ranks).status().message(); }

  TrainerOptions options;
  std::string folder;

 private:
  Result<Outcome> run_rank(comm::Communicator& world) {
    const auto words = make_words();
    Trainer trainer(world, words_task(words), std::make_shared<WordsDataset>(torch::kFloat64), {},
                    options);
    STORMO_ASSIGN_OR_RETURN(const observe::EndRecord end, trainer.run());
    Outcome out{end, {}};
    for (const torch::Tensor& p : words->parameters()) out.values.push_back(p.detach().clone());
    return out;
  }
};

void expect_equal(const std::vector<torch::Tensor>& a, const std::vector<torch::Tensor>& b) {
  ASSERT_EQ(a.size(), b.size());
  for (std::size_t i = 0; i < a.size(); ++i) EXPECT_TRUE(a[i].equal(b[i])) << "parameter " << i;
}

TEST_F(InPlaceServers, OneWorkerIsOneProcessBitForBit) {
  options.clip_norm = 0.05;
  options.micro_batches = 2;
  for (const Rule kind : {Rule::kSgd, Rule::kAdagrad}) {
    options.optimizer.kind = kind;
    options.strategy = {.kind = Strategy::Kind::kOneDevice};
    const Outcome alone = run(1);
    in_place();
    for (const int servers : {1, 3}) {
      options.servers.count = servers;
      expect_equal(run(1).values, alone.values);
    }
  }
}

TEST_F(InPlaceServers, WorkersLearnTogetherAndLeaveOtherRowsAlone) {
  options.optimizer.lr = 0.02;  // small enough for a gradient that comes late
  options.steps = 1;
  const double first_loss = run(3).end.train_loss;
  options.steps = 200;
  options.checkpoint = {.directory = folder, .every = 30};
  const torch::Tensor first = make_words()->table->weight.detach().clone();
  const Outcome served = run(3);
  EXPECT_LT(served.end.train_loss, first_loss / 4);
  EXPECT_EQ(served.end.steps, 200);
  ASSERT_EQ(served.end.staleness.size(), 3u);
  EXPECT_EQ(served.end.staleness[1].gradients, 200 * 3);
  EXPECT_TRUE(served.values[0].slice(0, kUsedWords).equal(first.slice(0, kUsedWords)));
  EXPECT_FALSE(served.values[0].slice(0, 0, kUsedWords).equal(first.slice(0, 0, kUsedWords)));
}

// With one worker there is one order of updates. What is saved does not change while it is written.
TEST_F(InPlaceServers, ResumesBitForBit) {
  options.optimizer.kind = Rule::kAdagrad;
  const Outcome unbroken = run(1);
  options.checkpoint = {.directory = folder, .every = 4};
  options.steps = 8;
  (void)run(1);
  options.steps = 20;
  options.resume = true;
  expect_equal(run(1).values, unbroken.values);
}

TEST_F(InPlaceServers, RefusesWhatCannotBe) {
  options.servers.policy.kind = PolicyOptions::Kind::kSync;
  EXPECT_THAT(refused(), HasSubstr("updates in place go with policy async"));
  options.servers.policy = {.warm_start = 1};
  EXPECT_THAT(refused(), HasSubstr("leave out strategy.warm_start"));
  options.servers.policy = {};
  options.servers.placement = server::PlacementRule::kSliced;
  EXPECT_THAT(refused(), HasSubstr("cuts through the rows"));
  options.servers.placement = {};
  options.strategy.exchange = {.fetch = 2, .push = 2};
  EXPECT_THAT(refused(), HasSubstr("leave out fetch_every and push_every"));
  options.strategy.exchange = {};
  options.record = folder;
  EXPECT_THAT(refused(), HasSubstr("no order that could be recorded"));
  options.record.clear();
  options.servers.updates = server::ShardUpdates::kVersions;
  EXPECT_THAT(refused(), HasSubstr("use strategy.updates=in_place"));
}

TEST_F(InPlaceServers, AreNotSimulated) {
  const auto simulated = simulate_training(words_task(make_words()), WordsDataset(torch::kFloat64),
                                           options, {.workers = 2, .steps = 20});
  EXPECT_THAT(simulated.status().message(), HasSubstr("neither simulated nor replayed"));
}

}  // namespace
}  // namespace stormo::train
