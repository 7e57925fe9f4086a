// Whole runs on a device whose memory the host may not read: with evaluation and checkpoints.
#include <gtest/gtest.h>

#include <string>

#include <stormo/train/state/state_blocks.h>

#include "tests/device/stub_device.h"
#include "tests/unit/train/trainer_run.h"

namespace stormo::test {
namespace {

class TrainerOnDevices : public TrainerRun {
 protected:
  TrainerOnDevices() : TrainerRun("trainer_on_devices") {
    options.eval_every = 10;
    options.verify_every = 5;
    verify_state = 4;  // a difference between two ranks would end the run
    options.optimizer = {.kind = train::OptimizerOptions::Kind::kAdamW, .lr = 0.01};
    options.strategy.parameters = train::Strategy::Parameters::kReplicated;  // as on devices
  }
  Outcome on_devices(int ranks) {
    device = stub_device;
    return run(ranks);
  }
  Outcome on_cpu(int ranks) {
    device = nullptr;
    return run(ranks);
  }
};

TEST_F(TrainerOnDevices, TrainsAndEvaluatesAsOnTheCpu) {
  for (const int ranks : {1, 2}) {
    const Outcome there = on_devices(ranks), here = on_cpu(ranks);
    EXPECT_LE(distance(there.values, here.values), 1e-12) << ranks << " ranks";
    ASSERT_EQ(there.steps.size(), here.steps.size());
    for (std::size_t i = 0; i < here.steps.size(); ++i) {
      EXPECT_NEAR(there.steps[i].loss, here.steps[i].loss, 1e-12) << i;
    }
    ASSERT_EQ(there.evals.size(), here.evals.size());
    for (std::size_t i = 0; i < here.evals.size(); ++i) {
      EXPECT_NEAR(there.evals[i].loss, here.evals[i].loss, 1e-12) << i;
      EXPECT_EQ(there.evals[i].accuracy, here.evals[i].accuracy) << i;
    }
  }
}

TEST(StateBlocksOnDevices, AreHashedAndReplacedThere) {
  const torch::Tensor here = torch::arange(100, torch::kFloat32);
  const auto blocks_of = [](const torch::Tensor& values) {
    return train::StateBlocks({{.name = "t", .shape = {100}, .end = 100, .values = values}});
  };
  const torch::Tensor there = here.to(stub_device(0));
  train::StateBlocks blocks = blocks_of(there);
  EXPECT_EQ(blocks.hashes(), blocks_of(here).hashes());
  const torch::Tensor other = here + 1;
  blocks.write(0, other.const_data_ptr());
  EXPECT_EQ(blocks.hashes(), blocks_of(other).hashes());
  EXPECT_TRUE(there.cpu().equal(other));
}

TEST_F(TrainerOnDevices, AveragesParametersNowAndThen) {
  options.strategy = {.kind = train::Strategy::Kind::kParameterAveraging, .period = 4};
  EXPECT_LE(distance(on_devices(2).values, on_cpu(2).values), 1e-12);
}

// A checkpoint is resumed from wherever it was written.
TEST_F(TrainerOnDevices, ResumesFromCheckpointsOfEitherSide) {
  const Outcome unbroken = on_devices(2);
  for (const bool written_there : {true, false}) {
    std::filesystem::remove_all(folder);
    options.checkpoint.directory = folder;
    options.checkpoint.every = 5;
    options.steps = 10;
    options.resume = false;
    written_there ? on_devices(2) : on_cpu(2);
    options.steps = 20;
    options.resume = true;
    const Outcome resumed = on_devices(2);
    if (written_there) {
      EXPECT_EQ(resumed.end.weights_hash, unbroken.end.weights_hash);
    }
    EXPECT_LE(distance(resumed.values, unbroken.values), 1e-12);
  }
}

TEST_F(TrainerOnDevices, ServersAreRefused) {
  options.strategy = {.kind = train::Strategy::Kind::kParameterServer};
  device = stub_device;
  const auto refused = try_run(2);
  EXPECT_EQ(refused.status().code(), Code::kRefused);
  EXPECT_NE(refused.status().message().find("servers"), std::string::npos)
      << refused.status().message();
}

TEST_F(TrainerOnDevices, ALossThatIsNotFiniteEndsTheRunWhereRanksAgree) {
  options.optimizer = {.lr = 1e308};
  device = stub_device;
  const auto ended = try_run(1);
  EXPECT_EQ(ended.status().code(), Code::kInvalidArgument);
  EXPECT_NE(ended.status().message().find("the loss is"), std::string::npos)
      << ended.status().message();
  EXPECT_EQ(ended.status().message().find("not finite first"), std::string::npos)
      << "it was looked for in the step";
}

}  // namespace
}  // namespace stormo::test
