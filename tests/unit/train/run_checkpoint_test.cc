#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include <stormo/base/temporary_folder.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/manifest.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/run/run_checkpoint.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

namespace fs = std::filesystem;
using testing::HasSubstr;

/// A user's model, optimizer and data, a function of the step alone: so replicas stay equal.
struct Loop {
  explicit Loop(std::uint64_t seed) {
    torch::manual_seed(seed);
    net = torch::nn::Sequential(torch::nn::Linear(6, 9), torch::nn::BatchNorm1d(9),
                                torch::nn::Linear(9, 2));
  }
  virtual ~Loop() = default;
  virtual RunCheckpoint checkpoint(comm::Communicator& world, const std::string& folder,
                                   const RunCheckpointOptions& options = {}) = 0;
  virtual void update() = 0;

  void train(TrainingPosition& at, int steps) {
    for (int i = 0; i < steps; ++i) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(at.step);
      const torch::Tensor x = torch::randn({8, 6}, generator);
      for (torch::Tensor& p : net->parameters()) p.mutable_grad() = torch::Tensor();
      net->forward(x).square().mean().backward();
      update();
      at = {at.step + 1, at.samples + 8, at.step / 2};
    }
  }
  std::string hash() const { return weights_hash(named_state(*net)); }

  torch::nn::Sequential net{nullptr};
};

template <class Make>
struct TorchLoop final : Loop {
  TorchLoop(std::uint64_t seed, const Make& make)
      : Loop(seed), optimizer(make(net->parameters())) {}
  RunCheckpoint checkpoint(comm::Communicator& world, const std::string& folder,
                           const RunCheckpointOptions& options) override {
    return {world, *net, *optimizer, folder, options};
  }
  void update() override { optimizer->step(); }
  std::unique_ptr<torch::optim::Optimizer> optimizer;
};

struct FusedLoop final : Loop {
  explicit FusedLoop(std::uint64_t seed) : Loop(seed) {}
  RunCheckpoint checkpoint(comm::Communicator& world, const std::string& folder,
                           const RunCheckpointOptions& options) override {
    return {world, *net, optimizer, folder, options};
  }
  void update() override { throw_if_error(optimizer.step(0.01)); }
  FusedOptimizer optimizer{{.kind = OptimizerOptions::Kind::kAdamW}, trainable_parameters(*net)};
};

using MakeLoop = std::function<std::unique_ptr<Loop>(std::uint64_t seed)>;

std::vector<MakeLoop> all_loops() {
  const auto sgd = [](const std::vector<torch::Tensor>& p) {
    return std::make_unique<torch::optim::SGD>(p, torch::optim::SGDOptions(0.1).momentum(0.9));
  };
  const auto adam = [](const std::vector<torch::Tensor>& p) {
    return std::make_unique<torch::optim::Adam>(p, torch::optim::AdamOptions(0.01));
  };
  return {
      [=](std::uint64_t seed) { return std::make_unique<TorchLoop<decltype(sgd)>>(seed, sgd); },
      [=](std::uint64_t seed) { return std::make_unique<TorchLoop<decltype(adam)>>(seed, adam); },
      [](std::uint64_t seed) { return std::make_unique<FusedLoop>(seed); }};
}

class RunCheckpointTest : public testing::Test {
 protected:
  /// f(communicator, loop) on ranks that are threads; each has a loop of its own.
  void on_ranks(int n, const MakeLoop& make, std::uint64_t seed,
                const std::function<void(comm::Communicator&, Loop&)>& f) {
    auto group = comm::make_inproc_group(n).take_or_throw();
    std::vector<std::unique_ptr<Loop>> loops;
    // Rank 0's seed; the others' state must not matter.
    for (int r = 0; r < n; ++r) loops.push_back(make(seed + static_cast<std::uint64_t>(r)));
    std::vector<std::thread> threads;
    for (int r = 0; r < n; ++r) {
      threads.emplace_back([&, r] { f(*group[static_cast<std::size_t>(r)], *loops[r]); });
    }
    for (std::thread& t : threads) t.join();
  }

  const TemporaryFolder own_ = TemporaryFolder::create("loop").take_or_throw();
  const std::string folder_ = own_.path() / "run";
};

TEST_F(RunCheckpointTest, ALoopGoesOnBitwiseOnAnyNumberOfRanks) {
  for (const MakeLoop& make : all_loops()) {
    fs::remove_all(folder_);
    std::string expected;
    on_ranks(1, make, 1, [&](comm::Communicator& world, Loop& loop) {
      RunCheckpoint checkpoint = loop.checkpoint(world, folder_);
      TrainingPosition at = checkpoint.restore();
      EXPECT_EQ(at, TrainingPosition());
      loop.train(at, 3);
      EXPECT_EQ(checkpoint.save(at), checkpoint::checkpoint_path(folder_, 3));
      loop.train(at, 4);
      expected = loop.hash();
    });
    for (const int ranks : {2, 1, 3}) {
      fs::remove_all(folder_ + "-again");
      on_ranks(ranks, make, 100, [&](comm::Communicator& world, Loop& loop) {
        TrainingPosition at = loop.checkpoint(world, folder_).restore();
        EXPECT_EQ(at, (TrainingPosition{3, 24, 1}));
        loop.train(at, 2);
        // Saved again by these ranks, in the same run and in a folder that begins another one.
        loop.checkpoint(world, folder_ + "-again").save(at);
        loop.train(at, 2);
        EXPECT_EQ(loop.hash(), expected) << ranks << " ranks, rank " << world.rank();
      });
      on_ranks(2, make, 200, [&](comm::Communicator& world, Loop& loop) {
        TrainingPosition at = loop.checkpoint(world, folder_ + "-again").restore();
        EXPECT_EQ(at.step, 5);
        loop.train(at, 2);
        EXPECT_EQ(loop.hash(), expected) << "saved by " << ranks << " ranks";
      });
    }
  }
}

TEST_F(RunCheckpointTest, AFolderBelongsToOneRun) {
  const MakeLoop make = all_loops()[0];
  const auto run_of_newest = [&] {
    const std::string newest = checkpoint::newest_checkpoint(folder_).take_or_throw();
    return checkpoint::check_checkpoint(newest, true).take_or_throw().run.id;
  };
  on_ranks(2, make, 1, [&](comm::Communicator& world, Loop& loop) {
    loop.checkpoint(world, folder_).save({.step = 9});
  });
  const std::string first = run_of_newest();
  on_ranks(2, make, 1, [&](comm::Communicator& world, Loop& loop) {
    RunCheckpoint fresh = loop.checkpoint(world, folder_);  // has not asked what is there
    try {
      fresh.save({.step = 1});
      ADD_FAILURE() << "mixed two runs";
    } catch (const Error& e) {
      EXPECT_THAT(e.status().message(), HasSubstr("holds checkpoints already"));
    }
    EXPECT_EQ(fresh.restore().step, 9);
    fresh.save({.step = 10});
  });
  EXPECT_EQ(run_of_newest(), first);
  on_ranks(2, make, 1, [&](comm::Communicator& world, Loop& loop) {
    RunCheckpoint anew = loop.checkpoint(world, folder_, {.overwrite = true});
    EXPECT_EQ(anew.restore(), TrainingPosition());
    anew.save({.step = 1});
  });
  EXPECT_NE(run_of_newest(), first);
  EXPECT_EQ(checkpoint::newest_checkpoint(folder_).take_or_throw(),
            checkpoint::checkpoint_path(folder_, 1));
}

TEST_F(RunCheckpointTest, WhatBelongsToAnotherModelOrOptimizerIsRefusedOnAllRanks) {
  const auto loops = all_loops();
  on_ranks(1, loops[0], 1, [&](comm::Communicator& world, Loop& loop) {
    TrainingPosition at;
    loop.train(at, 1);
    loop.checkpoint(world, folder_).save(at);
  });
  on_ranks(3, loops[2], 1, [&](comm::Communicator& world, Loop& loop) {
    EXPECT_THROW(loop.checkpoint(world, folder_).restore(), Error);
  });
  on_ranks(3, loops[0], 1, [&](comm::Communicator& world, Loop& loop) {
    loop.net->push_back(torch::nn::Linear(2, 2));
    try {
      loop.checkpoint(world, folder_).restore();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.status().message(), HasSubstr("it has no '3."));
    }
  });
  const std::string larger = folder_ + "-larger";
  on_ranks(1, loops[0], 1, [&](comm::Communicator& world, Loop& loop) {
    loop.net->push_back(torch::nn::Linear(2, 2));
    loop.checkpoint(world, larger).save({.step = 1});
  });
  on_ranks(3, loops[0], 1, [&](comm::Communicator& world, Loop& loop) {
    try {
      loop.checkpoint(world, larger).restore();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.status().message(), HasSubstr("'3.bias' is not part of this one"));
    }
  });
}

TEST_F(RunCheckpointTest, ABufferIsNotTakenForStateOfTheOptimizer) {
  on_ranks(2, all_loops()[0], 1, [&](comm::Communicator& world, Loop& loop) {
    const auto statistics = torch::nn::BatchNorm1dOptions(2).affine(false);
    loop.net->push_back("optimizer", torch::nn::BatchNorm1d(statistics));
    try {
      loop.checkpoint(world, folder_).save({.step = 1});
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.status().message(), HasSubstr("rename that submodule"));
    }
  });
}

}  // namespace
}  // namespace stormo::train
