#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <filesystem>
#include <functional>
#include <mutex>
#include <thread>

#include <stormo/base/temporary_folder.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/checkpoint/format/manifest.h>
#include <stormo/train/checkpoint/run_checkpoint.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>
#include <stormo/train/state/checkpoint.h>

namespace stormo::train {
namespace {

namespace fs = std::filesystem;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;

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
      EXPECT_THAT(e.status().message(), AllOf(HasSubstr("holds checkpoints already"),
                                              HasSubstr("restore()"), Not(HasSubstr("--"))));
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

/// The same loop on shards; every rank has the same batch, so ranks of any power of two compute the
/// same bits.
struct ShardedLoop {
  ShardedLoop(comm::Communicator& w, FusedLoop& l, const ShardingOptions& sharding)
      : world(w), loop(l), fsdp(w, loop.net, sharding), optimizer(fsdp.make_optimizer(kAdamW)) {}

  RunCheckpoint checkpoint(const std::string& folder) { return {world, fsdp, *optimizer, folder}; }
  void train(TrainingPosition& at, int steps) {
    for (int i = 0; i < steps; ++i) {
      const auto generator = at::make_generator<at::CPUGeneratorImpl>(at.step);
      fsdp.forward(torch::randn({8, 6}, generator)).square().mean().backward();
      fsdp.step(*optimizer, 0.01);
      fsdp.zero_grad();
      at = {at.step + 1, at.samples + 8, at.step / 2};
    }
  }
  std::string hash() {
    const auto whole = fsdp.gathered();
    return loop.hash();
  }

  static constexpr OptimizerOptions kAdamW{.kind = OptimizerOptions::Kind::kAdamW};
  comm::Communicator& world;
  FusedLoop& loop;
  FullyShardedDataParallel fsdp;
  std::unique_ptr<FusedOptimizer> optimizer;
};

class ShardedCheckpointTest : public RunCheckpointTest {
 protected:
  void on_shards(int ranks, std::uint64_t seed, const ShardingOptions& sharding,
                 const std::function<void(ShardedLoop&)>& f) {
    const MakeLoop make = [](std::uint64_t s) { return std::make_unique<FusedLoop>(s); };
    on_ranks(ranks, make, seed, [&](comm::Communicator& world, Loop& loop) {
      ShardedLoop sharded(world, dynamic_cast<FusedLoop&>(loop), sharding);
      f(sharded);
      EXPECT_TRUE(world.barrier().ok());  // nobody leaves while others gather
    });
  }
};

TEST_F(ShardedCheckpointTest, ALoopOfShardsGoesOnBitwiseOnAnyNumberOfRanks) {
  for (const int stage : {1, 3}) {
    fs::remove_all(folder_);
    std::string expected;
    on_shards(2, 1, {.stage = stage}, [&](ShardedLoop& loop) {
      RunCheckpoint checkpoint = loop.checkpoint(folder_);
      TrainingPosition at = checkpoint.restore();
      EXPECT_EQ(at, TrainingPosition());
      loop.train(at, 3);
      EXPECT_EQ(checkpoint.save(at), checkpoint::checkpoint_path(folder_, 3));
      loop.train(at, 4);
      const std::string hash = loop.hash();
      if (loop.world.rank() == 0) expected = hash;
    });
    for (const int ranks : {1, 2, 4}) {
      on_shards(ranks, 100, {.stage = stage}, [&](ShardedLoop& loop) {
        TrainingPosition at;
        loop.train(at, 1);  // so that there is other state to be replaced
        at = loop.checkpoint(folder_).restore();
        EXPECT_EQ(at, (TrainingPosition{3, 24, 1}));
        loop.train(at, 4);
        EXPECT_EQ(loop.hash(), expected) << "stage " << stage << ", " << ranks << " ranks";
      });
    }
  }
}

TEST_F(ShardedCheckpointTest, ReplicasAndShardsReadEachOthersAndExportTheSame) {
  const MakeLoop fused = [](std::uint64_t seed) { return std::make_unique<FusedLoop>(seed); };
  const std::string of_shards = folder_ + "-shards.safetensors",
                    of_replicas = folder_ + ".safetensors";
  on_shards(2, 1, {}, [&](ShardedLoop& loop) {
    RunCheckpoint checkpoint = loop.checkpoint(folder_);
    EXPECT_THROW(checkpoint.export_model(of_shards), Error);  // nothing was saved
    TrainingPosition at;
    loop.train(at, 3);
    checkpoint.save(at);
    checkpoint.export_model(of_shards);
    EXPECT_THROW(checkpoint.export_model(of_shards), Error);  // it is there already
  });
  on_ranks(2, fused, 50, [&](comm::Communicator& world, Loop& loop) {
    RunCheckpoint checkpoint = loop.checkpoint(world, folder_);
    TrainingPosition at = checkpoint.restore();
    EXPECT_EQ(at.step, 3);
    checkpoint.export_model(of_replicas);
    loop.train(at, 2);
    checkpoint.save(at);
  });
  const TensorMap a = read_safetensors(of_shards).take_or_throw();
  const TensorMap b = read_safetensors(of_replicas).take_or_throw();
  EXPECT_EQ(a.size(), 9u);  // two Linear, BatchNorm and its statistics
  EXPECT_EQ(weights_hash(a), weights_hash(b));
  on_shards(4, 60, {},
            [&](ShardedLoop& loop) { EXPECT_EQ(loop.checkpoint(folder_).restore().step, 5); });
}

TEST_F(ShardedCheckpointTest, OtherModelsAndOptimizersAreRefusedOnAllRanks) {
  const auto loops = all_loops();
  on_ranks(1, loops[0], 1, [&](comm::Communicator& world, Loop& loop) {
    loop.checkpoint(world, folder_).save({.step = 1});
  });
  on_shards(2, 1, {}, [&](ShardedLoop& loop) {
    try {
      loop.checkpoint(folder_).restore();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("the state of another optimizer"));
    }
  });
  const std::string larger = folder_ + "-larger";
  on_ranks(1, loops[2], 1, [&](comm::Communicator& world, Loop& loop) {
    loop.net->push_back(torch::nn::Linear(2, 2));
    loop.checkpoint(world, larger).save({.step = 1});
  });
  on_shards(2, 1, {}, [&](ShardedLoop& loop) {
    const std::string before = loop.hash();
    try {
      loop.checkpoint(larger).restore();
      ADD_FAILURE();
    } catch (const Error& e) {
      EXPECT_THAT(e.what(), HasSubstr("'3.bias' is not part of this one"));
    }
    EXPECT_EQ(loop.hash(), before);
  });
}

// RunCheckpoint of the module and the optimizer that are sharded: was the end of the process.
TEST_F(ShardedCheckpointTest, AnOptimizerOfShardsIsNotSavedAsOneOfReplicas) {
  on_shards(2, 1, {}, [&](ShardedLoop& loop) {
    TrainingPosition at;
    loop.train(at, 1);
    const auto whole = loop.fsdp.gathered();
    RunCheckpoint wrong(loop.world, *loop.loop.net, *loop.optimizer, folder_);
    EXPECT_THROW(wrong.save(at), Error);
  });
}

}  // namespace
}  // namespace stormo::train
