// The Trainer and DistributedDataParallel on real processes.
#include <cmath>
#include <csignal>
#include <set>

#include "tests/unit/train/trained_job.h"

namespace stormo {
namespace {

namespace fs = std::filesystem;
using namespace stormo::test;

// 47 samples: with a batch of 12 the last one of an epoch has 11, with 10 it has 7, with 23 it has
// 1, so that all ranks but one have none.
TEST_F(DistributedTrainer, AnyNumberOfRanksGivesTheSameLosses) {
  for (const std::string batch : {"batch=12", "batch=10", "batch=23"}) {
    const RankFile one = train(1, {batch});
    for (const int ranks : {2, 3, 4}) {
      if (ranks == 2 && batch == "batch=10") continue;  // divides: batch=12 has that
      expect_equal_losses(train(ranks, {batch, "verify_every=1"}), one,
                          batch + " on " + std::to_string(ranks) + " ranks");
    }
  }
}

TEST_F(DistributedTrainer, AdamWToo) {
  expect_equal_losses(train(3, {"adamw=1", "batch=10"}), train(1, {"adamw=1", "batch=10"}),
                      "AdamW");
}

// Gradients are summed in the order of ranks both ways. The norm for clipping is not: it adds up
// what the owners of slices found.
TEST_F(DistributedTrainer, OneCopyPerHostGivesTheBitsOfReplicas) {
  for (const std::string optimizer : {"adamw=0", "adamw=1"}) {
    for (const int ranks : {2, 3, 4}) {
      const RankFile replicas =
          train(ranks, {"strategy=mirrored", "batch=10", "clip=0", optimizer});
      const RankFile shared =
          train(ranks, {"strategy=central_storage", "batch=10", "clip=0", optimizer});
      EXPECT_EQ(shared.losses, replicas.losses) << ranks << " ranks, " << optimizer;
      EXPECT_EQ(shared.hash, replicas.hash) << ranks << " ranks, " << optimizer;
    }
    expect_equal_losses(train(3, {"strategy=central_storage", "batch=10", optimizer}),
                        train(1, {"batch=10", optimizer}), "clipped, " + optimizer);
  }
}

TEST_F(DistributedTrainer, ReducersAndBucketsChangeNothingButTheOrderOfAdditions) {
  const RankFile one = train(1, {"batch=10"});
  for (const std::string how : {"reducer=ring", "reducer=hierarchical", "reducer=reduce_to_one",
                                "bucket_bytes=1", "bucket_bytes=20000"}) {
    expect_equal_losses(train(3, {how, "batch=10", "verify_every=1"}), one, how);
  }
}

TEST_F(DistributedTrainer, DeterministicBitsDependOnRanksAndHostsAlone) {
  const auto run = [this](Placement placement, const std::string& bucket_bytes,
                          const std::string& how) {
    return train(placement, {"batch=10", "clip=0", "bucket_bytes=" + bucket_bytes, how});
  };
  const auto expect_same = [&](Placement placement, const std::string& how) {
    const RankFile measured = run(placement, "0", how);
    for (const std::string bucket_bytes : {"1", "4096"}) {
      const RankFile other = run(placement, bucket_bytes, how);
      EXPECT_EQ(other.losses, measured.losses) << placement.ranks << " ranks, " << bucket_bytes;
      EXPECT_EQ(other.hash, measured.hash) << placement.ranks << " ranks, " << bucket_bytes;
    }
    return measured.hash;
  };
  for (const int ranks : {3, 4}) {
    EXPECT_EQ(train(ranks, {"batch=10", "clip=0", "strategy=central_storage"}).hash,
              expect_same(ranks, "deterministic=1"));
  }
  EXPECT_NE(run(4, "1", "reducer=ring").hash, run(4, "1000000", "reducer=ring").hash);
  expect_same({4, 2}, "deterministic=1");
}

// Ranks in ascending order, whether memory or a network carries what they add.
TEST_F(DistributedTrainer, DeterministicBitsDoNotDependOnTheTransport) {
  const auto hash = [&](Placement placement, const std::string& deterministic) {
    return train(placement,
                 {"model=mlp", "batch=10", "strategy=ddp", "parameters=replicated", deterministic})
        .hash;
  };
  EXPECT_EQ(hash(4, "deterministic=1"), hash({4, 4}, "deterministic=1"));
  EXPECT_NE(hash(4, "deterministic=0"), hash({4, 4}, "deterministic=0"));
}

// Also where shards of a host have replicas on others, among which gradients are summed.
TEST_F(DistributedTrainer, DeterministicBitsOfShardsDoNotDependOnTheSelection) {
  const std::string file = root + ".selection";
  std::ofstream(file) << "selection v1\n"
                         "reduce_scatter one_host ranks=0 bytes=0 ring_reduce_scatter pieces=1\n"
                         "all_reduce one_per_host ranks=0 bytes=0 ring_all_reduce pieces=1\n";
  const auto hash = [&](Placement placement, bool selected, const std::string& deterministic,
                        const std::string& hybrid) {
    if (selected) setenv("STORMO_SELECTION", file.c_str(), 1);
    const RankFile end = train(placement, {"model=mlp", "batch=10", "strategy=fsdp",
                                           "parameters=sharded", deterministic, hybrid});
    unsetenv("STORMO_SELECTION");
    return end.hash;
  };
  for (const auto& [placement, hybrid] :
       {std::pair<Placement, std::string>{4, "hybrid=0"}, {{6, 3}, "hybrid=1"}}) {
    EXPECT_NE(hash(placement, true, "deterministic=0", hybrid),
              hash(placement, false, "deterministic=0", hybrid));
    EXPECT_EQ(hash(placement, true, "deterministic=1", hybrid),
              hash(placement, false, "deterministic=1", hybrid));
  }
  fs::remove(file);
}

TEST_F(DistributedTrainer, MicroBatchesAddUp) {
  const RankFile one = train(1, {"batch=10"});
  expect_equal_losses(train(1, {"batch=10", "micro_batches=3"}), one, "one rank");
  for (const std::string strategy : {"mirrored", "central_storage"}) {
    expect_equal_losses(train(2, {"batch=10", "micro_batches=3", "strategy=" + strategy}), one,
                        strategy);
  }
  expect_equal_losses(train(2, {"batch=10", "micro_batches=2", "bucket_bytes=1"}), one, "buckets");
}

TEST_F(DistributedTrainer, EveryStrategyIsOneDeviceOnOneRank) {
  const RankFile one = train(1, {"strategy=one_device"});
  for (const std::string strategy :
       {"mirrored", "multi_worker_mirrored", "central_storage", "ddp", "fsdp"}) {
    const RankFile same = train(1, {"strategy=" + strategy});
    EXPECT_EQ(same.losses, one.losses) << strategy;
    EXPECT_EQ(same.hash, one.hash) << strategy;
  }
}

struct Placed {
  int ranks;
  std::vector<std::string> strategy;
};

std::vector<std::string> on_chain(const Placed& placed, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"model=mlp", "batch=10", "adamw=1"});
  more.insert(more.end(), placed.strategy.begin(), placed.strategy.end());
  return more;
}

const std::vector<Placed> kEveryStrategy = {
    {2, {"strategy=mirrored"}},
    {3, {"strategy=central_storage"}},
    {2, {"strategy=fsdp", "parameters=sharded", "stage=1"}},
    {3, {"strategy=fsdp", "parameters=sharded", "stage=2"}},
    {4, {"strategy=fsdp", "parameters=sharded", "stage=3"}},
    {2, {"strategy=ddp", "parameters=replicated", "bucket_bytes=4096"}},
};

TEST_F(DistributedTrainer, MicroBatchesAddUpInEveryStrategy) {
  const RankFile one = train(1, on_chain({1, {}}));
  for (const Placed& placed : kEveryStrategy) {
    expect_equal_losses(train(placed.ranks, on_chain(placed, {"micro_batches=2"})), one,
                        placed.strategy.back() + ", micro-batches");
  }
}

// What one strategy has saved, the next one loads, on another number of ranks.
TEST_F(DistributedTrainer, EveryStrategyGoesOnFromTheCheckpointOfAnother) {
  const RankFile one = train(1, on_chain({1, {}}));
  for (std::size_t i = 0; i < kEveryStrategy.size(); ++i) {
    const Placed& saver = kEveryStrategy[i];
    const Placed& loader = kEveryStrategy[(i + 1) % kEveryStrategy.size()];
    const RankFile broken =
        train(saver.ranks,
              on_chain(saver, {"checkpoint=1", "event=sigterm", "event_rank=0", "event_call=5"}),
              128 + SIGTERM);
    ASSERT_GE(broken.losses.size(), 1u);
    ASSERT_LT(broken.losses.size(), one.losses.size());
    keep_checkpoint();
    const RankFile resumed = train(loader.ranks, on_chain(loader, {"checkpoint=1", "resume=1"}));
    RankFile joined = broken;
    joined.losses.insert(resumed.losses.begin(), resumed.losses.end());
    expect_equal_losses(joined, one, saver.strategy.back() + " to " + loader.strategy.back());
  }
}

TEST_F(DistributedTrainer, TwoRunsAreBitwiseEqual) {
  const RankFile a = train(3, {"batch=10"}), b = train(3, {"batch=10"});
  EXPECT_EQ(a.losses, b.losses);
  EXPECT_EQ(a.hash, b.hash);
  EXPECT_EQ(a.eval, b.eval);
}

TEST_F(DistributedTrainer, ASignalOnOneRankStopsAllAndTheRunGoesOnBitwise) {
  const RankFile unbroken = train(2, {});
  const RankFile broken =
      train(2, {"checkpoint=1", "event=sigterm", "event_rank=1", "event_call=5"}, 128 + SIGTERM);
  EXPECT_NE(broken.status.find("interrupted"), std::string::npos) << broken.status;
  ASSERT_LT(broken.losses.size(), unbroken.losses.size());
  ASSERT_GE(broken.losses.size(), 1u);
  EXPECT_EQ(read_rank(last_folder, 1).status, broken.status);

  keep_checkpoint();
  const RankFile resumed = train(2, {"checkpoint=1", "resume=1"});
  std::map<long, double> joined = broken.losses;
  joined.insert(resumed.losses.begin(), resumed.losses.end());
  EXPECT_EQ(joined, unbroken.losses);
  EXPECT_EQ(resumed.hash, unbroken.hash);
}

// The samples of each step over all ranks.
std::vector<std::multiset<std::string>> read_samples(const std::string& folder, int ranks) {
  std::vector<std::multiset<std::string>> steps;
  for (int r = 0; r < ranks; ++r) {
    std::ifstream in(folder + "/samples-" + std::to_string(r));
    std::string line, sample;
    for (std::size_t step = 0; std::getline(in, line); ++step) {
      if (steps.size() <= step) steps.resize(step + 1);
      std::istringstream words(line);
      while (words >> sample) steps[step].insert(sample);
    }
  }
  return steps;
}

// kill -9 in the middle, while checkpoints are written in the background. On the same number of
// ranks the losses go on bitwise, on another one the sequence of samples does.
TEST_F(DistributedTrainer, AfterAKillTheRunGoesOnOnAnyNumberOfRanks) {
  const RankFile unbroken = train(2, {});
  const auto samples = read_samples(last_folder, 2);
  train(2, {"checkpoint=1", "checkpoint_every=1", "event=sigkill", "event_rank=1", "event_call=7"},
        kAnyFailure);
  const std::string broken = last_folder;
  for (const int ranks : {2, 1, 3}) {
    const std::string folder = root + "/" + std::to_string(count);
    fs::create_directories(folder);
    fs::copy(broken + "/ckpt", folder + "/ckpt",
             fs::copy_options::recursive | fs::copy_options::copy_symlinks);
    const RankFile resumed = train(ranks, {"checkpoint=1", "resume=1"});
    ASSERT_FALSE(resumed.losses.empty());
    const long first = resumed.losses.begin()->first;
    EXPECT_GE(first, 3);  // what was saved is used
    EXPECT_EQ(resumed.losses.rbegin()->first, unbroken.losses.rbegin()->first);
    for (const auto& [step, loss] : resumed.losses) {
      const double wanted = unbroken.losses.at(step);
      EXPECT_LE(std::fabs(loss - wanted), ranks == 2 ? 0 : 1e-10 * std::fabs(wanted)) << step;
    }
    if (ranks == 2) {
      EXPECT_EQ(resumed.hash, unbroken.hash);
    }
    const auto rest = read_samples(folder, ranks);
    for (std::size_t i = 0; i < resumed.losses.size(); ++i) {
      EXPECT_EQ(rest.at(i), samples.at(static_cast<std::size_t>(first) - 1 + i));
    }
  }
}

TEST_F(DistributedTrainer, SavesThatFailTooOftenEndAllRanksAtTheSameStep) {
  train(2, {"checkpoint=1", "checkpoint_every=1", "event=block", "event_rank=0", "event_call=1"},
        1);
  const RankFile first = read_rank(last_folder, 0), second = read_rank(last_folder, 1);
  EXPECT_NE(first.status.find("3 times in a row"), std::string::npos) << first.status;
  EXPECT_EQ(first.status, second.status);
}

TEST_F(DistributedTrainer, AnUnreadableSampleEndsAllRanksWithThatCause) {
  train(3, {"event=throw", "event_rank=2"}, 1);
  for (const int rank : {0, 1, 2}) {
    const std::string status = read_rank(last_folder, rank).status;
    EXPECT_NE(status.find("this sample cannot be read"), std::string::npos)
        << "rank " << rank << ": " << status;
  }
}

// A NaN ends all ranks before it reaches their gradients: what they say names where it came from.
TEST_F(DistributedTrainer, ANonFiniteLossNamesRankPlaceAndStep) {
  struct Case {
    std::vector<std::string> arguments;
    std::string place;
  };
  const std::string event = "event=nan";
  const std::vector<Case> cases = {
      {{"strategy=mirrored", event, "event_rank=1"}, "the input"},
      {{"strategy=central_storage", event, "event_rank=1"}, "the input"},
      {{"strategy=fsdp", "parameters=sharded", "model=mlp", event, "event_rank=1"}, "the input"},
      {{"strategy=mirrored", "drift_rank=1", "drift_nan=1"}, "parameter 'last.bias'"},
  };
  for (const Case& c : cases) {
    train(3, c.arguments, 1);
    for (const int rank : {0, 1, 2}) {
      const std::string status = read_rank(last_folder, rank).status;
      for (const std::string& part :
           {std::string("step 4"), std::string("rank 1: the loss is nan"), c.place}) {
        EXPECT_NE(status.find(part), std::string::npos)
            << c.arguments.front() << ", rank " << rank << ": " << status;
      }
    }
  }
}

// Rank 0 too: it is not believed more than the others.
TEST_F(DistributedTrainer, AReplicaWithAFlippedBitIsNamedByTheMajority) {
  for (const std::string wrong : {"0", "1"}) {
    train(3, {"drift_rank=" + wrong, "verify_every=1"}, 1);
    for (const int rank : {0, 1, 2}) {
      const std::string status = read_rank(last_folder, rank).status;
      EXPECT_NE(status.find("weights of rank(s) " + wrong + " differ from those of the majority"),
                std::string::npos)
          << "rank " << rank << ": " << status;
      EXPECT_NE(status.find("first in 'last.bias'"), std::string::npos) << status;
      EXPECT_NE(status.find("so the values stay"), std::string::npos) << status;
      EXPECT_NE(status.find("after step 3"), std::string::npos) << status;
    }
  }
}

// In 16 bits.
using Words = std::vector<std::string>;

const std::vector<Words> kSixteenBits = {
    {"strategy=mirrored"},
    {"strategy=central_storage"},
    {"strategy=fsdp", "parameters=sharded", "stage=1"},
    {"strategy=fsdp", "parameters=sharded", "stage=2"},
    {"strategy=fsdp", "parameters=sharded", "stage=3"},
};

Words joined(Words a, const Words& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

Words in(const std::string& precision, Words more = {}) {
  return joined({"model=mlp", "batch=10", "precision=" + precision}, more);
}

double last_losses(const RankFile& run) {
  double sum = 0;
  auto step = run.losses.rbegin();
  for (int i = 0; i < 5; ++i) sum += (step++)->second / 5;
  return sum;
}

TEST_F(DistributedTrainer, InSixteenBitsEveryStrategyEndsWithinAPercentOfSinglePrecision) {
  const Words fifty = {"epochs=0", "steps=50"};
  const RankFile single = train(1, in("float32", fifty));
  ASSERT_EQ(single.losses.size(), 50u);
  EXPECT_LT(last_losses(single), 0.8 * single.losses.at(1));
  for (const std::string precision : {"bfloat16", "float16"}) {
    for (const Words& strategy : kSixteenBits) {
      const RankFile mixed = train(2, in(precision, joined(fifty, strategy)));
      EXPECT_NEAR(last_losses(mixed), last_losses(single), 0.01 * last_losses(single))
          << precision << ", " << strategy.back();
      EXPECT_NE(mixed.losses, single.losses) << precision << ", " << strategy.back();
      EXPECT_EQ(mixed.skipped, 0) << strategy.back();
    }
  }
}

TEST_F(DistributedTrainer, AnOverflowOnOneRankSkipsOneStepOnAll) {
  for (const Words& strategy : kSixteenBits) {
    const RankFile first =
        train(3, in("float16", joined({"overflow_rank=1", "micro_batches=2"}, strategy)));
    EXPECT_EQ(first.skipped, 1) << strategy.back();
    EXPECT_EQ(first.losses.size(), 10u) << strategy.back();
  }
}

// The scale starts where all gradients overflow and grows every other step: a run that lost it
// would skip other steps.
TEST_F(DistributedTrainer, ARunGoesOnBitwiseWithTheScaleThatWasSaved) {
  const Words scale = {"loss_scale=16777216", "growth_interval=2", "checkpoint=1"};
  for (const std::size_t i : {0u, 1u, 4u}) {
    const Words arguments = in("float16", joined(scale, kSixteenBits[i]));
    const RankFile unbroken = train(2, arguments);
    EXPECT_GT(unbroken.skipped, 1) << kSixteenBits[i].back();
    EXPECT_LT(unbroken.skipped, 10) << kSixteenBits[i].back();
    const RankFile broken = train(
        2, joined(arguments, {"event=sigterm", "event_rank=1", "event_call=5"}), 128 + SIGTERM);
    ASSERT_LT(broken.losses.size(), unbroken.losses.size());
    keep_checkpoint();
    const RankFile resumed = train(2, joined(arguments, {"resume=1"}));
    RankFile whole = broken;
    whole.losses.insert(resumed.losses.begin(), resumed.losses.end());
    EXPECT_EQ(whole.losses, unbroken.losses) << kSixteenBits[i].back();
    EXPECT_EQ(resumed.hash, unbroken.hash) << kSixteenBits[i].back();
  }
}

TEST(DistributedDataParallel, DoesWhatItPromises) {
  for (const int ranks : {1, 2, 3}) {
    if (ranks == 1) {
      EXPECT_EQ(run_worker(1, {"nested_module"}), 0);
      EXPECT_EQ(run_worker(1, {"unused_parameters"}), 0);
    } else {
      EXPECT_EQ(run_worker(ranks, {"all"}), 0) << ranks << " ranks";
    }
  }
}

TEST(DistributedDataParallel, AFailureLeavesBackwardAsAnError) {
  EXPECT_EQ(run_worker(2, {"failure_in_backward"}), 1);
}

TEST(DistributedDataParallel, ARankThatSkipsAPassEndsAllOfThem) {
  EXPECT_EQ(run_worker(2, {"skipped_backward"}), 1);
  EXPECT_EQ(run_worker(2, {"skipped_last_backward"}), 1);
}

}  // namespace
}  // namespace stormo
