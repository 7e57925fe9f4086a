// Runs whose gradients travel in a codec that encodes, ended and gone on with, on real processes.
#include <csignal>
#include <utility>

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
