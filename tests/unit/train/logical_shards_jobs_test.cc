// Runs with logical shards on real processes: the same bits on any number of ranks.
#include "tests/long.h"
#include "tests/unit/train/trained_job.h"

namespace stormo {
namespace {

using namespace stormo::test;

const std::vector<Placement> kPlacements = {2, 3, 4, {2, 2}, {3, 2}, {4, 2}, {3, 3}};

std::string name_of(Placement at) {
  return std::to_string(at.ranks) + " ranks on " + std::to_string(at.hosts) + " hosts";
}

std::vector<Words> with(const Words& more, std::vector<Words> trainings) {
  for (Words& arguments : trainings) {
    arguments = joined(joined(arguments, more), {"strategy=ddp", "steps=20"});
  }
  return trainings;
}

// 47 samples: with a batch of 12 the last one of an epoch has 11, with 10 it has 7; with 6 it has
// 5, and of 8 shards some have no sample. In float32, where each other order of additions shows.
const std::vector<Words> kTrainings = {
    {"model=mlp", "precision=float32", "batch=12"},
    {"model=mlp", "precision=float32", "batch=10", "adamw=1"},
    {"model=gpt", "precision=float32", "batch=12", "adamw=1"},
    {"model=gpt", "precision=float32", "batch=6", "clip=0"},
    {"batch=6", "micro_batches=1"},
};

class ShardedBatches : public DistributedTrainer {
 protected:
  void expect_same_bits(const std::vector<Words>& trainings,
                        const std::vector<Placement>& placements) {
    const auto one = train_each(1, trainings);
    for (const Placement& at : placements) {
      const auto several = train_each(at, trainings);
      for (std::size_t i = 0; i < trainings.size(); ++i) {
        const std::string what = name_of(at) + ", " + ::testing::PrintToString(trainings[i]);
        EXPECT_EQ(one[i].losses.size(), 20u) << what;
        EXPECT_EQ(several[i].losses, one[i].losses) << what;
        EXPECT_EQ(several[i].hash, one[i].hash) << what;
        EXPECT_EQ(several[i].skipped, one[i].skipped) << what;
      }
    }
  }
};

TEST_F(ShardedBatches, AnyNumberOfRanksGivesTheSameBits) {
  const std::vector<std::string> numbers = {"logical_shards=4", "logical_shards=6",
                                            "logical_shards=8"};
  std::vector<Words> trainings;
  for (std::size_t t = 0; t < kTrainings.size(); ++t) {
    for (std::size_t n = 0; n < numbers.size(); ++n) {
      // in the short form each training once, and each number
      if (!is_long_form() && n != t % numbers.size()) continue;
      trainings.push_back(with({numbers[n]}, {kTrainings[t]}).front());
    }
  }
  expect_same_bits(trainings, kPlacements);
}

// What is compared above can differ: so it does without shards.
TEST_F(ShardedBatches, WithoutThemTheBitsDependOnTheRanks) {
  const auto two = train_each(2, with({}, kTrainings)), three = train_each(3, with({}, kTrainings));
  for (std::size_t i = 0; i < kTrainings.size(); ++i) {
    EXPECT_NE(two[i].hash, three[i].hash) << ::testing::PrintToString(kTrainings[i]);
  }
}

TEST_F(ShardedBatches, RandomNumbersBelongToAShard) {
  const Words random = {"dropout=30"};
  expect_same_bits(with({"logical_shards=6"}, {random}), {2, 3, {4, 2}});
  EXPECT_NE(train_each(2, with({"logical_shards=6"}, {random}))[0].hash,
            train_each(2, with({"logical_shards=6"}, {{}}))[0].hash);
}

// The scale starts where gradients overflow.
TEST_F(ShardedBatches, TheLossScaleIsTheSame) {
  const auto half = with({"logical_shards=6", "model=mlp", "precision=float16"},
                         {{"loss_scale=16777216", "growth_interval=2"}});
  EXPECT_GT(train_each(1, half)[0].skipped, 0);
  expect_same_bits(half, {2, 3, {4, 2}});
}

TEST_F(ShardedBatches, OneRankForEachShard) {
  expect_same_bits(with({"logical_shards=5"}, kTrainings), {5});
}

TEST_F(ShardedBatches, AResumedRunHasTheBitsOfTheUnbrokenOne) {
  const Words common = {"logical_shards=8", "model=gpt",    "precision=float32", "adamw=1",
                        "batch=12",         "strategy=ddp", "checkpoint=1"};
  const RankFile unbroken = train(1, joined(common, {"steps=20"}));
  RankFile whole = train(4, joined(common, {"steps=6"}));
  const std::vector<std::pair<Placement, std::string>> parts = {
      {3, "steps=11"}, {1, "steps=14"}, {{2, 2}, "steps=20"}};
  for (const auto& [at, steps] : parts) {
    keep_checkpoint();
    const RankFile part = train(at, joined(common, {steps, "resume=1"}));
    whole.losses.insert(part.losses.begin(), part.losses.end());
    whole.hash = part.hash;
  }
  EXPECT_EQ(whole.losses, unbroken.losses);
  EXPECT_EQ(whole.hash, unbroken.hash);
}

}  // namespace
}  // namespace stormo
