// Runs of the Trainer whose module has no values before they start.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/model/mlp.h>
#include <stormo/tensor/memory.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/state/checkpoint.h>

#include "tests/unit/train/sharded_problem.h"
#include "tests/unit/train/toy.h"

namespace stormo::train {
namespace {

using Models = std::vector<std::shared_ptr<model::Chain>>;

/// One for each rank; `later` says which lack values.
Models models(const std::vector<bool>& later) {
  Models out;
  for (const bool lacks : later) {
    torch::manual_seed(out.empty() ? 3 : 4);  // the values of rank 0 count
    std::optional<model::ValuesLater> scope;
    if (lacks) scope.emplace();
    out.push_back(std::make_shared<model::Mlp>(std::vector<std::int64_t>{20, 16, 8, 3}));
    out.back()->to(torch::kFloat64);
  }
  return out;
}

struct Outcome {
  std::string hash, problem;
};

/// How all ranks end.
Outcome train(const Models& of_ranks, Strategy::Kind kind, const std::string& directory = "",
              bool resume = false, int steps = 3) {
  TrainerOptions options;
  options.steps = steps;
  options.global_batch = 12;
  options.strategy.kind = kind;
  options.strategy.parameters = Strategy::Parameters::kAuto;
  if (kind == Strategy::Kind::kFsdp) {
    options.strategy.parameters = Strategy::Parameters::kSharded;
  }
  options.checkpoint.directory = directory;
  options.resume = resume;
  std::vector<Outcome> outcomes(of_ranks.size());
  auto group = comm::make_inproc_group(static_cast<int>(of_ranks.size())).take_or_throw();
  test::on_ranks(group, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    Task task;
    task.module = of_ranks[rank];
    task.forward = [chain = of_ranks[rank]](const torch::Tensor& x) { return chain->forward(x); };
    task.loss = model::cross_entropy;
    Trainer trainer(world, std::move(task), std::make_shared<test::ToyDataset>(96),
                    {{"validation", std::make_shared<test::ToyDataset>(31), 7}}, options);
    const auto end = trainer.run();
    outcomes[rank] =
        end.ok() ? Outcome{end->weights_hash, ""} : Outcome{"", end.status().message()};
  });
  for (const Outcome& o : outcomes) EXPECT_EQ(o.hash, outcomes[0].hash) << o.problem;
  return outcomes[0];
}

bool has_memory(const model::Chain& chain) {
  return std::ranges::all_of(chain.parameters(), tensor::has_memory);
}

// Whichever ranks have them: those of rank 0 count, made or loaded there.
TEST(ValuesLater, AreTheSameWhereverTheyAreMade) {
  for (const auto kind : {Strategy::Kind::kFsdp, Strategy::Kind::kDdp}) {
    const Outcome wanted = train(models({false, false}), kind);
    EXPECT_EQ(wanted.problem, "");
    for (const auto& later : {std::vector<bool>{true, true}, {false, true}, {true, false}}) {
      const Models ranks = models(later);
      EXPECT_EQ(train(ranks, kind).hash, wanted.hash);
      // where each rank needs all of them, it keeps them
      EXPECT_EQ(has_memory(*ranks[0]), kind == Strategy::Kind::kDdp);
    }
  }
}

TEST(ValuesLater, ComeFromACheckpoint) {
  for (const auto kind : {Strategy::Kind::kFsdp, Strategy::Kind::kDdp}) {
    const std::string folder = ::testing::TempDir() + "values_later" + std::to_string(getpid());
    std::filesystem::remove_all(folder);
    const Outcome uninterrupted = train(models({true, true}), kind, "", false, 6);
    EXPECT_EQ(train(models({true, true}), kind, folder).problem, "");
    const Outcome resumed = train(models({true, true}), kind, folder, /*resume=*/true, 6);
    EXPECT_EQ(resumed.problem, "");
    EXPECT_EQ(resumed.hash, uninterrupted.hash);
    std::filesystem::remove_all(folder);
  }
}

// Into memory that is not there nothing is read.
TEST(ValuesLater, AreNotReadIntoAModelWithoutMemory) {
  const std::string folder = ::testing::TempDir() + "values_later" + std::to_string(getpid());
  std::filesystem::remove_all(folder);
  EXPECT_EQ(train(models({true, true}), Strategy::Kind::kDdp, folder).problem, "");
  auto reader = checkpoint::CheckpointReader::open(folder + "/step-00000003").take_or_throw();
  const Status status = read_all_into(reader, named_state(*models({true})[0]));
  EXPECT_EQ(status.code(), Code::kInvalidArgument);
  EXPECT_THAT(status.message(), ::testing::HasSubstr("'layer0.linear.bias' has no memory"));
  std::filesystem::remove_all(folder);
}

TEST(ValuesLater, AreGoneAfterARunInParts) {
  const Models ranks = models({true, true});
  EXPECT_EQ(train(ranks, Strategy::Kind::kFsdp).problem, "");
  EXPECT_THAT(
      train(ranks, Strategy::Kind::kFsdp).problem,
      ::testing::HasSubstr("'layer0.linear.weight' has no values: they went with an earlier "
                           "run, in which ranks had parts of this model; make it again"));
}

}  // namespace
}  // namespace stormo::train
