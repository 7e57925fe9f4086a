// The Trainer and DistributedDataParallel on real processes.
#include <cmath>
#include <csignal>
#include <set>

#include "tests/long.h"
#include "tests/unit/train/trained_job.h"
#include "tests/ways.h"

namespace stormo {
namespace {

namespace fs = std::filesystem;
using namespace stormo::test;

std::vector<Words> each_with(std::vector<Words> trainings, const Words& more) {
  for (Words& arguments : trainings) arguments = joined(arguments, more);
  return trainings;
}

/// Those that train as one process does.
std::vector<Words> ways_as_one(const std::vector<int>& hosts) {
  std::vector<Words> out;
  for (const Way& way : ways_on(hosts)) {
    if (way.trains_as_one()) out.push_back({"way=" + way.name});
  }
  return out;
}

const std::vector<Words> kEitherWay = {{"deterministic=0"}, {"deterministic=1"}};

// 47 samples: with a batch of 12 the last one of an epoch has 11, with 10 it has 7, with 23 it has
// 1, so that all ranks but one have none.
TEST_F(DistributedTrainer, AnyNumberOfRanksGivesTheSameLosses) {
  const std::vector<Words> batches = {{"batch=12"}, {"batch=10"}, {"batch=23"}};
  const auto one = train_each(1, batches);
  for (const int ranks : {2, 3, 4}) {
    const auto several = train_each(ranks, each_with(batches, {"verify_every=1"}));
    for (std::size_t i = 0; i < batches.size(); ++i) {
      expect_equal_losses(several[i], one[i],
                          batches[i].front() + " on " + std::to_string(ranks) + " ranks");
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
  const std::vector<Words> optimizers = {{"adamw=0", "batch=10"}, {"adamw=1", "batch=10"}};
  const auto one = train_each(1, optimizers);
  for (const int ranks : {2, 3, 4}) {
    const auto replicas = train_each(ranks, each_with(optimizers, {"strategy=mirrored", "clip=0"}));
    const auto shared =
        train_each(ranks, each_with(optimizers, {"strategy=central_storage", "clip=0"}));
    for (std::size_t i = 0; i < optimizers.size(); ++i) {
      EXPECT_EQ(shared[i].losses, replicas[i].losses) << ranks << " ranks, " << optimizers[i][0];
      EXPECT_EQ(shared[i].hash, replicas[i].hash) << ranks << " ranks, " << optimizers[i][0];
    }
  }
  const auto clipped = train_each(3, each_with(optimizers, {"strategy=central_storage"}));
  for (std::size_t i = 0; i < optimizers.size(); ++i) {
    expect_equal_losses(clipped[i], one[i], "clipped, " + optimizers[i][0]);
  }
}

TEST_F(DistributedTrainer, ReducersAndBucketsChangeNothingButTheOrderOfAdditions) {
  const RankFile one = train(1, {"batch=10"});
  const std::vector<Words> ways = {{"reducer=ring"},
                                   {"reducer=hierarchical"},
                                   {"reducer=reduce_to_one"},
                                   {"bucket_bytes=1"},
                                   {"bucket_bytes=20000"}};
  const auto several = train_each(3, each_with(ways, {"batch=10", "verify_every=1"}));
  for (std::size_t i = 0; i < ways.size(); ++i) {
    expect_equal_losses(several[i], one, ways[i].front());
  }
}

TEST_F(DistributedTrainer, DeterministicBitsDependOnRanksAndHostsAlone) {
  const Words common = {"batch=10", "clip=0"};
  const auto expect_same = [&](Placement placement) {
    const std::vector<Words> buckets = {
        {"bucket_bytes=0"}, {"bucket_bytes=1"}, {"bucket_bytes=4096"}};  // 0: as measured
    const auto runs =
        train_each(placement, each_with(buckets, joined(common, {"deterministic=1"})));
    for (std::size_t i = 1; i < runs.size(); ++i) {
      EXPECT_EQ(runs[i].losses, runs[0].losses) << placement.ranks << " ranks, " << buckets[i][0];
      EXPECT_EQ(runs[i].hash, runs[0].hash) << placement.ranks << " ranks, " << buckets[i][0];
    }
    return runs[0].hash;
  };
  for (const int ranks : {3, 4}) {
    EXPECT_EQ(train(ranks, joined(common, {"strategy=central_storage"})).hash, expect_same(ranks));
  }
  const auto rings = train_each(4, each_with({{"bucket_bytes=1"}, {"bucket_bytes=1000000"}},
                                             joined(common, {"reducer=ring"})));
  EXPECT_NE(rings[0].hash, rings[1].hash);
  expect_same({4, 2});
}

// Ranks in ascending order, whether memory or a network carries what they add.
TEST_F(DistributedTrainer, DeterministicBitsDoNotDependOnTheTransport) {
  const std::vector<Words> both =
      each_with(kEitherWay, {"model=mlp", "batch=10", "strategy=ddp", "parameters=replicated"});
  const auto memory = train_each(4, both), network = train_each({4, 4}, both);
  EXPECT_NE(memory[0].hash, network[0].hash);
  EXPECT_EQ(memory[1].hash, network[1].hash);
}

// Also where shards of a host have replicas on others, among which gradients are summed.
TEST_F(DistributedTrainer, DeterministicBitsOfShardsDoNotDependOnTheSelection) {
  const std::string file = root + ".selection";
  std::ofstream(file) << "selection v1\n"
                         "reduce_scatter one_host ranks=0 bytes=0 ring_reduce_scatter pieces=1\n"
                         "all_reduce one_per_host ranks=0 bytes=0 ring_all_reduce pieces=1\n";
  for (const auto& [placement, hybrid] :
       {std::pair<Placement, std::string>{4, "hybrid=0"}, {{6, 3}, "hybrid=1"}}) {
    const std::vector<Words> both = each_with(
        kEitherWay, {"model=mlp", "batch=10", "strategy=fsdp", "parameters=sharded", hybrid});
    const auto usual = train_each(placement, both);
    setenv("STORMO_SELECTION", file.c_str(), 1);
    const auto selected = train_each(placement, both);
    unsetenv("STORMO_SELECTION");
    EXPECT_NE(selected[0].hash, usual[0].hash) << hybrid;
    EXPECT_EQ(selected[1].hash, usual[1].hash) << hybrid;
  }
  fs::remove(file);
}

TEST_F(DistributedTrainer, MicroBatchesAddUp) {
  const auto one = train_each(1, {{"batch=10"}, {"batch=10", "micro_batches=3"}});
  expect_equal_losses(one[1], one[0], "one rank");
  const std::vector<Words> ways = {{"strategy=mirrored", "micro_batches=3"},
                                   {"strategy=central_storage", "micro_batches=3"},
                                   {"bucket_bytes=1", "micro_batches=2"}};
  const auto two = train_each(2, each_with(ways, {"batch=10"}));
  for (std::size_t i = 0; i < ways.size(); ++i) {
    expect_equal_losses(two[i], one[0], ways[i].front());
  }
}

TEST_F(DistributedTrainer, EveryStrategyIsOneDeviceOnOneRank) {
  std::vector<Words> strategies;
  for (const Way& way : ways()) {
    if (way.by_default && way.trains_as_one()) strategies.push_back({"way=" + way.name});
  }
  const auto runs = train_each(1, strategies);
  for (std::size_t i = 1; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].losses, runs[0].losses) << strategies[i][0];
    EXPECT_EQ(runs[i].hash, runs[0].hash) << strategies[i][0];
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

/// On 2 to 4 ranks.
const std::vector<Placed> kEveryStrategy = [] {
  std::vector<Placed> out;
  for (const Words& way : ways_as_one({4})) {
    out.push_back({2 + static_cast<int>(out.size()) % 3, way});
  }
  const int buckets = 2 + (out.back().ranks - 1) % 3;  // never as many as before
  out.push_back({buckets, {"strategy=ddp", "parameters=replicated", "bucket_bytes=4096"}});
  out.push_back({buckets == 4 ? 2 : 4, {"strategy=ddp", "pipeline=2", "micro_batches=2"}});
  return out;
}();

TEST_F(DistributedTrainer, MicroBatchesAddUpInEveryStrategy) {
  const RankFile one = train(1, on_chain({1, {}}));
  for (const int ranks : {2, 3, 4}) {
    std::vector<Words> trainings;
    for (const Placed& placed : kEveryStrategy) {
      if (placed.ranks == ranks) trainings.push_back(on_chain(placed, {"micro_batches=2"}));
    }
    const auto runs = train_each(ranks, trainings);
    for (std::size_t i = 0; i < runs.size(); ++i) {
      expect_equal_losses(runs[i], one, trainings[i].back() + ", micro-batches");
    }
  }
}

// What one strategy has saved, the next one loads, on another number of ranks. In the short form
// each one saves or loads.
TEST_F(DistributedTrainer, EveryStrategyGoesOnFromTheCheckpointOfAnother) {
  const RankFile one = train(1, on_chain({1, {}}));
  for (std::size_t i = 0; i < kEveryStrategy.size(); i += is_long_form() ? 1 : 2) {
    const Placed& saver = kEveryStrategy[i];
    const Placed& loader = kEveryStrategy[(i + 1) % kEveryStrategy.size()];
    ASSERT_TRUE(i + 1 == kEveryStrategy.size() || saver.ranks != loader.ranks);
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

// Samples of an epoch are for certain ranks: those that are left of it when a run ends are used by
// the next one. Which samples a rank has depends on the strategy only where several ranks share
// them.
TEST_F(DistributedTrainer, ReplicasOfOneRankAndOfSeveralGoOnInAStratifiedEpoch) {
  for (const Placed& placed : {kEveryStrategy.front(), kEveryStrategy.back()}) {
    const Words stratified = on_chain(placed, {"sharding=stratified", "checkpoint=1"});
    const RankFile unbroken = train(placed.ranks, stratified);
    const RankFile broken =
        train(placed.ranks, joined(stratified, {"event=sigterm", "event_rank=0", "event_call=5"}),
              128 + SIGTERM);
    ASSERT_GE(broken.losses.size(), 1u);
    ASSERT_LT(broken.losses.size(), unbroken.losses.size());
    keep_checkpoint();
    RankFile whole = broken;
    whole.losses.merge(train(placed.ranks, joined(stratified, {"resume=1"})).losses);
    expect_equal_losses(whole, unbroken, placed.strategy.back());
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

// In processes, where it is replicated, or each host has a copy.
TEST_F(DistributedTrainer, AReplicaWithAFlippedBitIsMendedByTheMajority) {
  for (const Placement& placement : {Placement(3), Placement(3, 3)}) {
    const std::string way = placement.hosts == 1 ? "way=replicated" : "way=host_shared";
    const RankFile first = train(placement, {way, "drift_rank=1", "verify_state=4", "adamw=1"});
    ASSERT_EQ(first.mismatches.size(), 1u) << way;
    const auto& [step, text] = *first.mismatches.begin();
    EXPECT_GE(step, 3) << way;
    EXPECT_LT(step, 3 + 4) << way;
    EXPECT_NE(text.find("rank 1 (host"), std::string::npos) << text;
    EXPECT_NE(text.find("'last.bias'"), std::string::npos) << text;
  }
}

// Rounding, codecs that keep residuals, and skipped steps make no difference between replicas.
TEST_F(DistributedTrainer, ComparingReplicasChangesNothingAndFindsNothing) {
  std::vector<Words> trainings;
  for (const Words& way : ways_as_one({2, 2})) trainings.push_back(joined(way, {"model=mlp"}));
  const Words replicated = {"way=replicated", "model=mlp"};
  trainings.push_back(joined(replicated, {"precision=float16", "overflow_rank=1"}));
  trainings.push_back(joined(replicated, {"precision=bfloat16"}));
  trainings = each_with(trainings, {"batch=10", "adamw=1", "deterministic=1"});
  const std::size_t repeatable = trainings.size();
  for (const char* codec :
       {"bfloat16", "int8", "sign", "qsgd", "top_k", "threshold", "random_k", "powersgd"}) {
    trainings.push_back(joined(replicated, {std::string("compression=") + codec, "batch=10"}));
  }
  const auto without =
      train_each({4, 2}, {trainings.begin(), trainings.begin() + static_cast<long>(repeatable)});
  for (const char* every : {"verify_state=3", "verify_state=-1"}) {
    const auto with = train_each({4, 2}, each_with(trainings, {every}));
    for (std::size_t i = 0; i < trainings.size(); ++i) {
      const std::string what = ::testing::PrintToString(trainings[i]) + every;
      EXPECT_TRUE(with[i].mismatches.empty()) << what;
      if (i >= repeatable) continue;
      EXPECT_EQ(with[i].hash, without[i].hash) << what;
      EXPECT_EQ(with[i].losses, without[i].losses) << what;
    }
  }
}

// In 16 bits.
const std::vector<Words> kSixteenBits = ways_as_one({2});

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
    std::vector<Words> strategies = kSixteenBits;
    strategies.push_back({"strategy=ddp", "pipeline=2", "micro_batches=2"});
    const auto mixed = train_each(2, each_with(strategies, in(precision, fifty)));
    for (std::size_t i = 0; i < mixed.size(); ++i) {
      const std::string what = precision + ", " + strategies[i].back();
      EXPECT_NEAR(last_losses(mixed[i]), last_losses(single), 0.01 * last_losses(single)) << what;
      EXPECT_NE(mixed[i].losses, single.losses) << what;
      EXPECT_EQ(mixed[i].skipped, 0) << what;
    }
  }
}

TEST_F(DistributedTrainer, AnOverflowOnOneRankSkipsOneStepOnAll) {
  const auto runs =
      train_each(3, each_with(kSixteenBits, in("float16", {"overflow_rank=1", "micro_batches=2"})));
  for (std::size_t i = 0; i < runs.size(); ++i) {
    EXPECT_EQ(runs[i].skipped, 1) << kSixteenBits[i].back();
    EXPECT_EQ(runs[i].losses.size(), 10u) << kSixteenBits[i].back();
  }
}

// The scale starts where all gradients overflow and grows every other step: a run that lost it
// would skip other steps.
TEST_F(DistributedTrainer, ARunGoesOnBitwiseWithTheScaleThatWasSaved) {
  const Words scale = {"loss_scale=16777216", "growth_interval=2", "checkpoint=1"};
  for (const char* way : {"way=replicated", "way=host_shared", "way=stage3"}) {
    const Words arguments = in("float16", joined(scale, {way}));
    const RankFile unbroken = train(2, arguments);
    EXPECT_GT(unbroken.skipped, 1) << way;
    EXPECT_LT(unbroken.skipped, 10) << way;
    expect_goes_on(arguments, unbroken);
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
