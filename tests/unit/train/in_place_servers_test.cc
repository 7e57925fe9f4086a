// Training a table with sparse gradients on servers that update in place: what it must be equal to,
// and what is refused.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/simulate/simulated_training.h>

#include "words_run.h"

namespace stormo::train {
namespace {

using protocol::PolicyOptions;
using test::kUsedWords;
using test::make_words;
using test::words_task;
using test::WordsDataset;
using testing::HasSubstr;
using Rule = OptimizerOptions::Kind;

class InPlaceServers : public test::WordsRun {
 protected:
  InPlaceServers() { in_place(); }
  void in_place() {
    options.strategy = {.kind = Strategy::Kind::kParameterServer};
    options.servers = {.updates = server::ShardUpdates::kInPlace};
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
    options.servers = {};
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
  EXPECT_THAT(refused(), HasSubstr("'table.weight' has sparse gradients, and "
                                   "strategy.placement=sliced cuts through rows"));
  options.servers.placement = server::PlacementRule::kGreedy;
  options.strategy.exchange_periods = {.fetch = 2, .push = 2};
  EXPECT_THAT(refused(), HasSubstr("leave out fetch_every and push_every"));
  options.strategy.exchange_periods = {};
  options.record = folder;
  EXPECT_THAT(refused(), HasSubstr("no order that could be recorded"));
  options.record.clear();
}

TEST_F(InPlaceServers, AreNotSimulated) {
  const auto simulated = simulate_training(words_task(make_words()), WordsDataset(torch::kFloat64),
                                           options, {.workers = 2, .steps = 20});
  EXPECT_THAT(simulated.status().message(), HasSubstr("neither simulated nor replayed"));
}

}  // namespace
}  // namespace stormo::train
