// Runs whose gradients travel in a codec that encodes, ended and gone on with, on real processes.
#include <csignal>
#include <string>
#include <utility>
#include <vector>

#include "tests/long.h"
#include "tests/unit/train/trained_job.h"

namespace stormo {
namespace {

using namespace stormo::test;

// What a codec has lost, and where it stands in what it draws, is part of a checkpoint.
TEST_F(DistributedTrainer, ARunGoesOnBitwiseWithWhatACodecHasLost) {
  const std::vector<Words> strategies = {
      {"strategy=ddp", "parameters=replicated", "bucket_bytes=400"},
      {"model=mlp", "strategy=fsdp", "parameters=sharded", "stage=2"}};
  const Words codecs = {"int8", "sign", "qsgd", "random_k"};
  std::vector<Words> trainings;
  for (std::size_t s = 0; s < strategies.size(); ++s) {
    for (std::size_t c = 0; c < codecs.size(); ++c) {
      if (!is_long_form() && c % 2 != s) continue;  // each codec once
      trainings.push_back(joined(strategies[s], {"compression=" + codecs[c], "checkpoint=1"}));
    }
  }
  const auto unbroken = train_each(2, trainings);
  for (std::size_t i = 0; i < trainings.size(); ++i) expect_goes_on(trainings[i], unbroken[i]);
}

// Replicas stay equal in a host and between hosts, also those of stages. A run goes on bit for bit
// with its weights and the optimizer's state.
TEST_F(DistributedTrainer, ARunByAdasumHasEqualReplicasAndGoesOnBitwise) {
  const Words common = {"model=mlp",    "precision=float32", "strategy=ddp",  "batch=10",
                        "checkpoint=1", "reducer=adasum",    "verify_every=1"};
  const Words buckets = joined(common, {"bucket_bytes=4000"});
  const Words stages = joined(common, {"pipeline=2", "micro_batches=2"});
  const std::vector<std::pair<Placement, Words>> runs = {
      {3, buckets}, {5, buckets}, {{4, 2}, buckets}, {4, stages}};
  for (const auto& [placement, arguments] : runs) {
    SCOPED_TRACE(::testing::PrintToString(arguments) + std::to_string(placement.ranks));
    const RankFile run = train(placement, arguments);
    EXPECT_TRUE(run.mismatches.empty());
    ASSERT_GT(run.losses.size(), 5u);
    EXPECT_LT(run.losses.rbegin()->second, run.losses.begin()->second);
  }
  expect_goes_on(buckets, train(2, buckets));
}

// On other ranks it goes on with what all have lost, though not with the same bits.
TEST_F(DistributedTrainer, ARunGoesOnWithFactorsOfMatrices) {
  const Words arguments = {
      "model=mlp",          "strategy=ddp", "compression=powersgd", "parameters=replicated",
      "bucket_bytes=20000", "checkpoint=1"};
  const RankFile unbroken = train(2, arguments);
  expect_goes_on(arguments, unbroken);
  for (const auto& [before, after] : {std::pair{2, 3}, {3, 2}}) {
    train(before, joined(arguments, {"event=sigterm", "event_rank=1", "event_call=5"}),
          128 + SIGTERM);
    keep_checkpoint();
    const RankFile resumed = train(after, joined(arguments, {"resume=1", "verify_state=1"}));
    ASSERT_FALSE(resumed.losses.empty()) << after;
    EXPECT_GT(resumed.losses.begin()->first, 1) << after;
    EXPECT_TRUE(resumed.mismatches.empty()) << after;
    for (const auto& [step, loss] : resumed.losses) {
      EXPECT_NEAR(loss, unbroken.losses.at(step), 0.1 * unbroken.losses.at(step)) << after;
    }
  }
}

}  // namespace
}  // namespace stormo
