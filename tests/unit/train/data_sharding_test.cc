// Which samples ranks train on, with each sharding: in one run, and where one resumes another.
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/run/trainer.h>

#include "toy.h"

namespace stormo::train {
namespace {

using data::Sharding;
using test::make_toy_module;
using test::ToyModule;
using testing::HasSubstr;
using Samples = std::vector<std::int64_t>;

constexpr std::int64_t kSamples = 47;
constexpr int kClasses = 3;

std::int64_t class_of(std::int64_t sample) { return sample * kClasses / kSamples; }  // sorted

/// A sample tells its number by its first coordinate.
class SortedDataset final : public test::RowsDataset {
 public:
  explicit SortedDataset(bool has_classes = true)
      : RowsDataset(inputs(), targets()), has_classes_(has_classes) {}
  data::SampleLabels strata() const override {
    std::vector<std::int32_t> strata;
    for (std::int64_t i = 0; i < (has_classes_ ? kSamples : 0); ++i) {
      strata.push_back(static_cast<std::int32_t>(class_of(i)));
    }
    return strata;
  }
  static std::int64_t number_of(const torch::Tensor& row) {
    return std::lround(row[0].item<double>() * kSamples);
  }

 private:
  static torch::Tensor inputs() {
    torch::Tensor rows = test::toy_numbers({kSamples, 20});
    rows.select(1, 0).copy_(torch::arange(kSamples, torch::kFloat64) / kSamples);
    return rows;
  }
  static torch::Tensor targets() {
    Samples classes;
    for (std::int64_t i = 0; i < kSamples; ++i) classes.push_back(class_of(i));
    return torch::tensor(classes, torch::kInt64);
  }
  bool has_classes_;
};

class DataSharding : public testing::Test {
 protected:
  DataSharding() {
    options.global_batch = 8;
    options.steps = 18;  // three epochs of 6 steps
    options.log_every = 1;
    options.seed = 11;
    options.optimizer = {.lr = 0.05, .momentum = 0.9};
    options.strategy = {.kind = Strategy::Kind::kMirrored};
    options.checkpoint.directory = testing::TempDir() + "stormo_shards_" + std::to_string(getpid());
    options.overwrite = true;
  }
  ~DataSharding() override { std::filesystem::remove_all(options.checkpoint.directory); }

  struct Outcome {
    std::string hash;
    torch::Tensor values;       // of all parameters
    std::vector<Samples> used;  // by rank, in the order of use
    std::optional<observe::ShardingRecord> shards;
  };
  /// The run of all ranks. Every rank must end in the same way.
  Result<Outcome> try_run(int ranks) {
    auto group = comm::make_inproc_group(ranks).take_or_throw();
    Outcome outcome{.used = std::vector<Samples>(static_cast<std::size_t>(ranks))};
    std::vector<Status> ends(group.size());
    std::vector<std::thread> threads;
    for (std::size_t r = 0; r < group.size(); ++r) {
      threads.emplace_back([&, r] { ends[r] = run_rank(*group[r], outcome); });
    }
    for (std::thread& t : threads) t.join();
    for (const Status& end : ends) EXPECT_EQ(end.code(), ends[0].code()) << end.to_string();
    if (!ends[0].ok()) return ends[0];
    return outcome;
  }
  Outcome run(int ranks) { return try_run(ranks).take_or_throw(); }
  /// The rest of the run that was before it.
  Outcome resume(int ranks, std::int64_t steps) {
    options.resume = true;
    options.overwrite = false;
    options.steps = steps;
    return run(ranks);
  }

  TrainerOptions options;
  std::shared_ptr<const data::Dataset> dataset = std::make_shared<SortedDataset>();

 private:
  struct Recorder final : observe::RunObserver {
    void on_sharding(const observe::ShardingRecord& r) override { shards = r; }
    std::optional<observe::ShardingRecord> shards;
  };
  Status run_rank(comm::Communicator& world, Outcome& outcome) {
    const std::shared_ptr<ToyModule> module = make_module();
    Task task = test::toy_task(module);
    Samples& used = outcome.used[static_cast<std::size_t>(world.rank())];
    task.forward = [module, &used](const torch::Tensor& input) {
      for (std::int64_t i = 0; i < input.size(0); ++i) {
        used.push_back(SortedDataset::number_of(input[i]));
      }
      return module->forward(input);
    };
    Recorder recorder;
    Trainer trainer(world, task, dataset, {}, options);
    trainer.set_observer(&recorder);
    trainer.accept_changes({"data.sharding", "train.global_batch"});
    STORMO_ASSIGN_OR_RETURN(const observe::EndRecord end, trainer.run());
    if (world.rank() == 0) {
      outcome.hash = end.weights_hash;
      outcome.values = torch::nn::utils::parameters_to_vector(module->parameters()).detach();
      outcome.shards = recorder.shards;
    }
    return {};
  }
  /// The generator that the values come from is that of the process.
  static std::shared_ptr<ToyModule> make_module() {
    static std::mutex making;
    const std::lock_guard lock(making);
    return make_toy_module(3);
  }
};

/// Samples of all ranks, in ascending order.
Samples all_used(const std::vector<std::vector<Samples>>& runs) {
  Samples all;
  for (const auto& ranks : runs) {
    for (const Samples& used : ranks) all.insert(all.end(), used.begin(), used.end());
  }
  std::ranges::sort(all);
  return all;
}

Samples each_sample(int times) {
  Samples all;
  for (std::int64_t i = 0; i < kSamples; ++i) all.insert(all.end(), times, i);
  return all;
}

/// The largest |n_rc - n_c / ranks| of what the ranks used.
double largest_class_gap(const std::vector<Samples>& used, int epochs) {
  double gap = 0;
  for (const Samples& mine : used) {
    std::vector<double> counts(kClasses);
    for (const auto i : mine) ++counts[static_cast<std::size_t>(class_of(i))];
    for (int c = 0; c < kClasses; ++c) {
      const auto whole = static_cast<double>(std::ranges::count(each_sample(epochs), c, class_of));
      gap = std::max(gap, std::fabs(counts[static_cast<std::size_t>(c)] -
                                    whole / static_cast<double>(used.size())));
    }
  }
  return gap;
}

// The others have processes:
// DistributedTrainer.ReplicasOfOneRankAndOfSeveralGoOnInAStratifiedEpoch.
class EachStrategy : public DataSharding, public testing::WithParamInterface<Strategy::Kind> {};

// A batch of 8 leaves 7 samples for the last step of an epoch; 8 steps end in the second epoch.
TEST_P(EachStrategy, ResumesAsIfNothingHadEndedIt) {
  options.strategy.kind = GetParam();
  if (GetParam() == Strategy::Kind::kParameterServer) {
    options.servers.policy.kind = protocol::PolicyOptions::Kind::kSync;
  }
  for (const Sharding sharding :
       {Sharding::kContiguous, Sharding::kStratified, Sharding::kStrictStratified}) {
    options.sharding = sharding;
    options.resume = false;
    options.overwrite = true;
    options.steps = 18;
    const Outcome whole = run(2);
    EXPECT_EQ(all_used({whole.used}), each_sample(3));
    const double gap = largest_class_gap(whole.used, 3);
    if (sharding == Sharding::kContiguous) {
      EXPECT_GT(gap, 20);
    } else {
      EXPECT_LE(gap, 3);
    }
    options.steps = 8;
    const Outcome first = run(2);
    const Outcome rest = resume(2, 18);
    EXPECT_TRUE(rest.values.allclose(whole.values, 0, 1e-12));
    if (GetParam() != Strategy::Kind::kParameterServer) {  // which adds as gradients arrive
      EXPECT_EQ(rest.hash, whole.hash);
    }
    for (std::size_t r = 0; r < 2; ++r) {
      Samples joined = first.used[r];
      joined.insert(joined.end(), rest.used[r].begin(), rest.used[r].end());
      EXPECT_EQ(joined, whole.used[r]);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Strategies, EachStrategy,
                         testing::Values(Strategy::Kind::kMirrored,
                                         Strategy::Kind::kParameterServer));

// Each run ends in the middle of the first epoch, until the last one begins another.
TEST_F(DataSharding, AnyRanksAndBatchesFinishAnEpochAndBeginTheirOwn) {
  for (const Sharding sharding :
       {Sharding::kContiguous, Sharding::kStratified, Sharding::kStrictStratified}) {
    options.sharding = sharding;
    options.resume = false;
    options.overwrite = true;
    options.global_batch = 8;
    options.steps = 2;
    const Outcome two = run(2);
    options.global_batch = 9;
    const Outcome three = resume(3, 4);
    options.global_batch = 13;
    const Outcome one = resume(1, 5);  // 16 + 18 + 13 samples
    EXPECT_EQ(all_used({two.used, three.used, one.used}), each_sample(1));
    options.global_batch = 9;
    const Outcome next = resume(3, 5 + 6);
    EXPECT_EQ(all_used({next.used}), each_sample(1));
    if (sharding != Sharding::kContiguous) {
      EXPECT_LE(largest_class_gap(next.used, 1), 1);
    }
  }
}

TEST_F(DataSharding, AnEpochEndsWithTheShardingThatItBeganWith) {
  options.sharding = Sharding::kStratified;
  options.steps = 8;
  run(2);
  options.resume = true;
  options.overwrite = false;
  for (const Sharding other : {Sharding::kShuffled, Sharding::kContiguous}) {
    options.sharding = other;
    const Status status = try_run(2).status();
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_THAT(status.message(), HasSubstr("begun with sharding 'stratified'"));
  }
  options.sharding = Sharding::kStratified;
  resume(2, 12);
  options.sharding = Sharding::kContiguous;
  EXPECT_EQ(all_used({resume(2, 18).used}), each_sample(1));
}

TEST_F(DataSharding, AChosenOneIsReported) {
  options.steps = 1;
  EXPECT_FALSE(run(2).shards);
  options.sharding = Sharding::kContiguous;
  const auto parts = run(2).shards;
  ASSERT_TRUE(parts);
  EXPECT_EQ(parts->sharding, "contiguous");
  EXPECT_THAT(parts->counts, testing::ElementsAre(Samples{16, 8, 0}, Samples{0, 8, 15}));
  EXPECT_GT(parts->chi_square[0], 10);
  EXPECT_EQ(parts->degrees_of_freedom, 2);
  options.sharding = Sharding::kStratified;
  const auto shards = run(2).shards;
  ASSERT_TRUE(shards);
  EXPECT_LT(shards->chi_square[0], 0.2);
  dataset = std::make_shared<SortedDataset>(/*has_classes=*/false);
  options.sharding = Sharding::kContiguous;
  EXPECT_FALSE(run(2).shards);
}

/// Samples of every class but the first have its label, too.
class LabelledDataset final : public test::RowsDataset {
 public:
  LabelledDataset()
      : RowsDataset(test::toy_numbers({kSamples, 20}), torch::zeros({kSamples}, torch::kInt64)) {}
  data::SampleLabels strata() const override {
    std::vector<std::vector<std::int32_t>> sets;
    for (std::int64_t i = 0; i < kSamples; ++i)
      sets.push_back({0, static_cast<std::int32_t>(class_of(i))});
    return data::SampleLabels(sets);
  }
};

TEST_F(DataSharding, OfSamplesWithSeveralLabelsIsReported) {
  options.steps = 1;
  dataset = std::make_shared<LabelledDataset>();
  options.sharding = Sharding::kStratified;
  const auto shards = run(2).shards;
  ASSERT_TRUE(shards);
  EXPECT_THAT(shards->samples, testing::ElementsAre(24, 23));
  // 16 samples have label 0 alone, 16 label 1, too, and 15 label 2
  EXPECT_THAT(shards->counts, testing::ElementsAre(Samples{24, 8, 8}, Samples{23, 8, 7}));
  EXPECT_EQ(shards->degrees_of_freedom, 2);
  options.sharding = Sharding::kContiguous;
  EXPECT_THAT(run(2).shards->counts, testing::ElementsAre(Samples{24, 8, 0}, Samples{23, 8, 15}));
}

TEST_F(DataSharding, RefusesWhatItCannotStratify) {
  options.sharding = Sharding::kStrictStratified;
  options.global_batch = 10;
  const Status odd = try_run(3).status();
  EXPECT_EQ(odd.code(), Code::kRefused);
  EXPECT_THAT(odd.message(), HasSubstr("10 is no multiple of 3; write batch=9"));
  dataset = std::make_shared<SortedDataset>(/*has_classes=*/false);
  options.sharding = Sharding::kStratified;
  const Status unknown = try_run(2).status();
  EXPECT_EQ(unknown.code(), Code::kRefused);
  EXPECT_THAT(unknown.message(), HasSubstr("implement Dataset::strata()"));
}

}  // namespace
}  // namespace stormo::train
