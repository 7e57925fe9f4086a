#include <stormo/train/run/trainer.h>

#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <numeric>
#include <set>
#include <stdexcept>
#include <thread>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/checkpoint/file/run_lock.h>
#include <stormo/checkpoint/folder.h>
#include <stormo/data/sampler.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/state/checkpoint.h>

#include "tests/unit/comm/ranks.h"
#include "toy.h"

namespace stormo::train {
namespace {

using test::make_toy_module;
using test::toy_task;
using test::ToyDataset;
using test::ToyModule;
using testing::AllOf;
using testing::HasSubstr;
using testing::Not;
using testing::StartsWith;
using testing::UnorderedElementsAre;

class Recorder final : public observe::RunObserver {
 public:
  void on_start(const observe::StartRecord& r) override { start = r; }
  void on_step(const observe::StepRecord& r) override { steps.push_back(r); }
  void on_eval(const observe::EvalRecord& r) override { evals.push_back(r); }
  void on_save_failed(const observe::SaveFailedRecord& r) override {
    failed_saves.push_back(r);
    told_after.push_back(steps.empty() ? 0 : steps.back().step);
  }
  void on_end(const observe::EndRecord& r) override { end = r; }

  std::optional<observe::StartRecord> start;
  std::vector<observe::StepRecord> steps;
  std::vector<observe::EvalRecord> evals;
  std::vector<observe::SaveFailedRecord> failed_saves;
  std::vector<std::int64_t> told_after;  // which step each of them
  std::optional<observe::EndRecord> end;
};

// A world of one rank, a folder of its own, and runs of the toy problem in them.
class TrainerTest : public testing::Test {
 protected:
  TrainerTest() {
    options.global_batch = 10;
    options.epochs = 2;
    options.log_every = 1;
    options.seed = 11;
    options.optimizer = {.lr = 0.05, .momentum = 0.9, .weight_decay = 1e-4};
  }
  void SetUp() override {
    world = std::move(comm::make_inproc_group(1).take_or_throw()[0]);
    folder = testing::TempDir() + "stormo_trainer_" + std::to_string(getpid());
    std::filesystem::remove_all(folder);
  }
  void TearDown() override {
    std::filesystem::remove_all(folder);
    std::filesystem::remove_all(folder + ".aside");
  }

  Result<observe::EndRecord> run(const std::shared_ptr<ToyModule>& module,
                                 std::vector<EvalSplit> splits = {}) {
    recorder = {};
    // A run that failed has failed its group.
    if (!world->status().ok()) world = std::move(comm::make_inproc_group(1).take_or_throw()[0]);
    Task task = toy_task(module);
    task.loss = [this, loss = task.loss, step = 0](const torch::Tensor& output,
                                                   const torch::Tensor& target) mutable {
      if (at_step) at_step(++step);
      return loss(output, target);
    };
    Trainer trainer(*world, task, dataset, std::move(splits), options);
    trainer.set_observer(&recorder);
    trainer.accept_changes(accepted_changes);
    Result<observe::EndRecord> end = trainer.run();
    signal = trainer.interrupt_signal();
    last_saved = trainer.last_saved();
    return end;
  }

  /// A file takes the place of the folder: what is saved now fails.
  void block() const {
    std::filesystem::rename(folder, folder + ".aside");
    std::ofstream{folder};
  }
  void unblock() const {
    std::filesystem::remove(folder);
    std::filesystem::rename(folder + ".aside", folder);
  }

  std::unique_ptr<comm::Communicator> world;
  std::function<void(std::int64_t step)> at_step;  // in the forward of each
  std::string last_saved;
  std::shared_ptr<data::Dataset> dataset = std::make_shared<ToyDataset>(47);
  std::string folder;
  TrainerOptions options;
  std::vector<std::string> accepted_changes;
  Recorder recorder;
  int signal = -1;
};

// The loop that anybody would write, with nothing of this layer in it.
std::vector<double> plain_loop(ToyModule& module, const data::Dataset& dataset,
                               const TrainerOptions& options) {
  torch::optim::SGD sgd(module.parameters(), torch::optim::SGDOptions(options.optimizer.lr)
                                                 .momentum(options.optimizer.momentum)
                                                 .weight_decay(options.optimizer.weight_decay));
  data::Sampler sampler(dataset.size(), options.global_batch, options.seed, true, 0, 1);
  std::vector<double> losses;
  for (std::int64_t cursor = 0; cursor < options.epochs * dataset.size();) {
    const data::Sampler::Slice slice = sampler.slice(cursor);
    cursor = slice.next;
    const data::Batch batch = dataset.get(slice.indices, slice.epoch);
    sgd.zero_grad();
    const torch::Tensor loss =
        torch::nn::functional::cross_entropy(module.forward(batch.input), batch.target);
    loss.backward();
    sgd.step();
    losses.push_back(loss.item<double>());
  }
  return losses;
}

TEST_F(TrainerTest, OneRankIsBitwiseAPlainLoop) {
  for (const auto kind : {Strategy::Kind::kOneDevice, Strategy::Kind::kMirrored}) {
    options.strategy.kind = kind;
    auto plain = make_toy_module(3), ours = make_toy_module(3);
    const std::vector<double> losses = plain_loop(*plain, *dataset, options);
    const auto end = run(ours);
    ASSERT_TRUE(end.ok()) << end.status().to_string();
    ASSERT_EQ(recorder.steps.size(), losses.size());
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_DOUBLE_EQ(recorder.steps[i].loss, losses[i])
          << static_cast<int>(kind) << " step " << i + 1;
    }
    for (const auto& p : plain->named_parameters()) {
      EXPECT_TRUE(torch::equal(p.value(), ours->named_parameters()[p.key()])) << p.key();
    }
    EXPECT_EQ(end->weights_hash, weights_hash(named_state(*plain)));
  }
}

TEST_F(TrainerTest, RecordsSayWhatHappened) {
  options.eval_every = 5;
  auto module = make_toy_module(3);
  const auto held_out = std::make_shared<ToyDataset>(31);
  const auto end = run(module, {{"validation", held_out, 7}, {"test", held_out, 31}});
  ASSERT_TRUE(end.ok()) << end.status().to_string();
  EXPECT_EQ(recorder.start->steps, 10);
  EXPECT_EQ(recorder.start->parameters, 20 * 128 + 128 + 128 * 64 + 64 + 64 * 3 + 3);
  EXPECT_EQ(recorder.steps.back().epoch, 2.0);
  EXPECT_EQ(end->samples, 2 * 47);
  EXPECT_EQ(end->steps, 10);
  EXPECT_EQ(end->bytes_sent_per_rank, std::vector<std::uint64_t>{0});
  ASSERT_EQ(recorder.evals.size(), 3u);  // validation after step 5, both parts at the end

  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> all(31);
  std::iota(all.begin(), all.end(), 0);
  const data::Batch batch = held_out->get(all, 0);
  const torch::Tensor output = module->forward(batch.input);
  const double loss = torch::nn::functional::cross_entropy(output, batch.target).item<double>();
  const auto right = output.argmax(1).eq(batch.target).sum().item<std::int64_t>();
  EXPECT_NEAR(*end->val_loss, loss, 1e-12);
  EXPECT_NEAR(recorder.evals.back().loss, loss, 1e-12);
  EXPECT_DOUBLE_EQ(*end->test_accuracy, static_cast<double>(right) / 31);
  EXPECT_TRUE(module->is_training());
}

TEST_F(TrainerTest, ARecordOfAStepHasTheTotalsOfTheRun) {
  options.checkpoint = {.directory = folder, .every = 3, .asynchronous = false};
  options.clip_norm = 0.01;  // far below the norm of any step
  const auto plain = make_toy_module(3);
  const data::Sampler::Slice slice =
      data::Sampler(dataset->size(), options.global_batch, options.seed, true, 0, 1).slice(0);
  const data::Batch batch = dataset->get(slice.indices, slice.epoch);
  torch::nn::functional::cross_entropy(plain->forward(batch.input), batch.target).backward();
  double squares = 0;
  for (const torch::Tensor& p : plain->parameters()) {
    squares += p.grad().square().sum().item<double>();
  }
  const auto end = run(make_toy_module(3));
  ASSERT_TRUE(end.ok()) << end.status().message();
  const observe::StepRecord& first = recorder.steps.front();
  const observe::StepRecord& last = recorder.steps.back();
  EXPECT_NEAR(first.gradient_norm.value_or(0), std::sqrt(squares), 1e-12);
  EXPECT_EQ(first.samples, 10);
  EXPECT_EQ(last.samples, 2 * 47);
  EXPECT_EQ(first.times.steps(), 1u);
  EXPECT_EQ(last.times.steps(), recorder.steps.size());
  EXPECT_GT(last.times.seconds, 0);
  EXPECT_LE(last.times.seconds, end->wall_s);
  const auto computed = [](const observe::StepRecord& r) { return r.lane_seconds[0]; };
  EXPECT_TRUE(std::ranges::is_sorted(recorder.steps, {}, computed));
  EXPECT_GT(computed(last), computed(first));
  EXPECT_LE(computed(last), end->wall_s);
  EXPECT_EQ(recorder.steps[2].checkpoint, "");  // it is shown before it is saved
  EXPECT_THAT(recorder.steps[3].checkpoint, testing::EndsWith("step-00000003"));
}

TEST_F(TrainerTest, TwoRunsWithOneSeedAreEqual) {
  std::set<std::string> hashes;
  for (const std::uint64_t seed : {1, 1, 2}) {
    options.seed = seed;
    const auto end = run(make_toy_module(3, /*dropout=*/0.3));
    ASSERT_TRUE(end.ok()) << end.status().to_string();
    hashes.insert(end->weights_hash);
  }
  EXPECT_EQ(hashes.size(), 2u);
}

// Raises a signal while the batch of the n-th call is taken.
class SignalledDataset final : public ToyDataset {
 public:
  SignalledDataset(std::int64_t samples, int call, int number)
      : ToyDataset(samples), call_(call), number_(number) {}
  data::Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override {
    if (++calls_ == call_) raise(number_);
    return ToyDataset::get(indices, epoch);
  }

 private:
  int call_, number_;
  mutable int calls_ = 0;
};

TEST_F(TrainerTest, AnInterruptedRunGoesOnBitwise) {
  for (const auto kind : {OptimizerOptions::Kind::kSgd, OptimizerOptions::Kind::kAdamW}) {
    for (const int number : {SIGINT, SIGTERM}) {
      std::filesystem::remove_all(folder);
      options.resume = false;
      options.checkpoint = {};
      options.optimizer.kind = kind;
      options.optimizer.lr = 0.01;
      options.clip_norm = 0.5;
      options.learning_rate = {.kind = LearningRateOptions::Kind::kCosine, .warmup_steps = 3};
      dataset = std::make_shared<ToyDataset>(47);
      const auto unbroken = run(make_toy_module(3, 0.3));
      ASSERT_TRUE(unbroken.ok()) << unbroken.status().to_string();
      const auto expected = recorder.steps;

      options.checkpoint.directory = folder;
      dataset = std::make_shared<SignalledDataset>(47, 4, number);
      const auto broken = run(make_toy_module(3, 0.3));
      ASSERT_EQ(broken.status().code(), Code::kInterrupted) << broken.status().to_string();
      EXPECT_EQ(signal, number);
      EXPECT_TRUE(recorder.end->interrupted);
      const auto before = recorder.steps;
      ASSERT_LT(before.size(), expected.size());
      EXPECT_EQ(recorder.end->checkpoint, *checkpoint::newest_checkpoint(folder));

      options.resume = true;
      dataset = std::make_shared<ToyDataset>(47);
      const auto resumed = run(make_toy_module(77, 0.3));  // other weights: they must not matter
      ASSERT_TRUE(resumed.ok()) << resumed.status().to_string();
      EXPECT_EQ(recorder.start->first_step, static_cast<std::int64_t>(before.size()));
      ASSERT_EQ(before.size() + recorder.steps.size(), expected.size());
      for (std::size_t i = 0; i < expected.size(); ++i) {
        const double loss =
            i < before.size() ? before[i].loss : recorder.steps[i - before.size()].loss;
        EXPECT_EQ(loss, expected[i].loss) << "step " << i + 1;
      }
      EXPECT_EQ(resumed->weights_hash, unbroken->weights_hash);
      EXPECT_EQ(resumed->samples, unbroken->samples);
      EXPECT_EQ(signal, 0);
    }
  }
}

TEST_F(TrainerTest, RefusesAForeignCheckpoint) {
  options.checkpoint.directory = folder;
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  options.resume = true;
  auto other = make_toy_module(3);
  other->register_parameter("extra", torch::zeros({2}, torch::kFloat64));
  const auto end = run(other);
  EXPECT_EQ(end.status().code(), Code::kInvalidArgument);
  EXPECT_NE(end.status().message().find("'extra'"), std::string::npos) << end.status().to_string();
}

TEST_F(TrainerTest, ListsEverythingThatIsWrong) {
  options.steps = options.epochs = 0;
  options.global_batch = 0;
  options.resume = true;
  options.gradients = {.reducer = Reducer::kRing, .deterministic = true};
  const auto end = run(make_toy_module(3));
  EXPECT_EQ(end.status().code(), Code::kInvalidArgument);
  for (const char* part : {"steps or epochs", "global batch", "resume needs", "the reducer"}) {
    EXPECT_NE(end.status().message().find(part), std::string::npos) << end.status().to_string();
  }
  EXPECT_FALSE(recorder.start);
}

TEST_F(TrainerTest, AnExceptionOfTheTaskFailsTheGroup) {
  auto module = make_toy_module(3);
  Task task = toy_task(module);
  task.loss = [](const torch::Tensor&, const torch::Tensor&) -> torch::Tensor {
    throw std::runtime_error("no loss today");
  };
  Trainer trainer(*world, task, dataset, {}, options);
  const auto end = trainer.run();
  EXPECT_EQ(end.status().code(), Code::kException);
  EXPECT_NE(end.status().message().find("no loss today"), std::string::npos);
  EXPECT_FALSE(world->status().ok());
}

TEST_F(TrainerTest, AFailedSaveIsToldAndTheNextOneDueTriesAgain) {
  options.checkpoint = {.directory = folder, .every = 2, .asynchronous = false, .max_failures = 3};
  at_step = [this](std::int64_t step) {
    if (step == 1 || step == 7) block();
    if (step == 5 || step == 10) unblock();
  };
  const auto end = run(make_toy_module(3));
  ASSERT_TRUE(end.ok()) << end.status().to_string();
  std::vector<std::pair<std::int64_t, int>> told;
  for (const auto& r : recorder.failed_saves) told.emplace_back(r.step, r.failures);
  EXPECT_EQ(told, (std::vector<std::pair<std::int64_t, int>>{{2, 1}, {4, 2}, {8, 1}}));
  EXPECT_EQ(recorder.told_after, (std::vector<std::int64_t>{2, 4, 8}));
  EXPECT_NE(recorder.failed_saves[0].error.find(folder), std::string::npos);
  EXPECT_EQ(end->checkpoint, checkpoint::checkpoint_path(folder, 10));
  EXPECT_EQ(*checkpoint::newest_checkpoint(folder), end->checkpoint);
  EXPECT_EQ(last_saved, end->checkpoint);
}

// In the background the failure is known long before the next save is due, and told then. The steps
// between them are so many that the thread that saves has its turn, on busy cores too.
TEST_F(TrainerTest, AFailureInTheBackgroundIsToldAtOnceAndTheLastSaveIsStillTried) {
  options.checkpoint = {.directory = folder, .every = 2000};
  options.steps = 3999;
  options.log_every = 100;
  at_step = [this](std::int64_t step) {
    if (step == 2000) block();
    if (step == 3999) unblock();
  };
  const auto end = run(make_toy_module(3));
  ASSERT_TRUE(end.ok()) << end.status().to_string();
  ASSERT_EQ(recorder.failed_saves.size(), 1u);
  EXPECT_EQ(recorder.failed_saves[0].step, 2000);
  EXPECT_LT(recorder.told_after[0], 3900);
  EXPECT_EQ(*checkpoint::newest_checkpoint(folder), checkpoint::checkpoint_path(folder, 3999));
}

TEST_F(TrainerTest, TooManyFailedSavesInARowEndTheRun) {
  for (const bool asynchronous : {false, true}) {
    options.checkpoint = {
        .directory = folder, .every = 100, .asynchronous = asynchronous, .max_failures = 2};
    at_step = [this](std::int64_t step) {
      if (step != 200) return;
      // the save of step 100 is to succeed, however late the thread that saves has its turn
      while (!std::filesystem::exists(folder + "/latest")) std::this_thread::yield();
      block();
    };
    options.steps = 1'000'000;  // it does not come so far
    options.log_every = 100;
    const auto end = run(make_toy_module(3));
    EXPECT_EQ(end.status().code(), Code::kIo);
    EXPECT_NE(end.status().message().find("2 times in a row (checkpoint.max_failures)"),
              std::string::npos)
        << end.status().to_string();
    EXPECT_EQ(recorder.failed_saves.size(), 2u);
    EXPECT_EQ(last_saved, checkpoint::checkpoint_path(folder, 100));
    unblock();
    std::filesystem::remove_all(folder);
  }
}

TEST_F(TrainerTest, AFreshRunDoesNotMixWithTheCheckpointsOfAnother) {
  options.checkpoint.directory = folder;
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  const auto refused = run(make_toy_module(3));
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("TrainerOptions::overwrite"), Not(HasSubstr("--"))));
  EXPECT_FALSE(recorder.start);
  options.overwrite = true;
  options.epochs = 1;
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  EXPECT_EQ(*checkpoint::newest_checkpoint(folder), checkpoint::checkpoint_path(folder, 5));
  options.resume = true;
  EXPECT_EQ(run(make_toy_module(3)).status().code(), Code::kInvalidArgument);  // not both
}

TEST_F(TrainerTest, AllRanksSayWhyARunIsRefused) {
  options.checkpoint.directory = folder;
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  const std::vector modules = {make_toy_module(3), make_toy_module(3)};
  const auto refused = [&](comm::Communicator& ranks) {
    const Task task = toy_task(modules[static_cast<std::size_t>(ranks.rank())]);
    const auto end = Trainer(ranks, task, dataset, {}, options).run();
    EXPECT_EQ(end.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(end.status().message(), StartsWith("'" + folder + "' holds checkpoints already"));
  };
  comm::on_ranks(2, refused, /*finalize=*/false);
}

TEST_F(TrainerTest, ARunThatGoesOnRefusesOptionsThatTrainSomethingElse) {
  options.checkpoint.directory = folder;
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  options.resume = true;
  options.epochs = 3;
  options.optimizer.lr = 0.01;
  options.clip_norm = 0.5;
  const auto refused = run(make_toy_module(3));
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(),
              AllOf(HasSubstr("optimizer.lr was 0.05, the program now says 0.01"),
                    HasSubstr("Trainer::accept_changes(): train.clip_norm,optimizer.lr"),
                    Not(HasSubstr("epochs")), Not(HasSubstr("--"))));
  EXPECT_FALSE(recorder.start);

  accepted_changes = {"train.clip_norm", "optimizer"};
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  std::vector<std::string> told;
  for (const observe::ChangeRecord& c : recorder.start->changed) told.push_back(c.key);
  EXPECT_THAT(told, UnorderedElementsAre("train.epochs", "train.clip_norm", "optimizer.lr"));

  options.epochs = 4;
  dataset = std::make_shared<ToyDataset>(48);
  EXPECT_THAT(run(make_toy_module(3)).status().message(), HasSubstr("data was \"47 samples"));
  options.name = "another";
  EXPECT_THAT(run(make_toy_module(3)).status().message(),
              HasSubstr("choose another checkpoint.directory"));
}

TEST_F(TrainerTest, TwoJobsDoNotResumeOneRunAtOnce) {
  options.checkpoint.directory = folder;
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  options.resume = true;
  {
    checkpoint::RunLock other;
    ASSERT_TRUE(other.take(folder, Deadline::never()).ok());
    const auto refused = run(make_toy_module(3));
    EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
    EXPECT_NE(refused.status().message().find("another run"), std::string::npos);
    EXPECT_FALSE(recorder.start);
  }
  EXPECT_TRUE(run(make_toy_module(3)).ok());
}

TEST_F(TrainerTest, KeepsCheckpointsEverySoManySteps) {
  options.checkpoint = {.directory = folder, .every = 3, .keep = 10};
  ASSERT_TRUE(run(make_toy_module(3)).ok());
  int folders = 0;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    folders += entry.is_directory() && entry.path().filename().string().starts_with("step-");
  }
  EXPECT_EQ(folders, 4);  // after steps 3, 6, 9 and 10
}

}  // namespace
}  // namespace stormo::train
