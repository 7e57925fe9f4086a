#include <stormo/comm/agreement/agreement.h>

#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/loop/run_facts.h>
#include <stormo/train/recipe/recipe_schema.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

#include "tests/unit/train/sharded_problem.h"
#include "toy.h"
#include "words.h"

namespace stormo::train {
namespace {

using comm::check_agreement, comm::compare_facts, comm::Fact, comm::RankFacts;
using test::Words;
using test::WordsDataset;
using testing::HasSubstr;
using testing::Not;

RankFacts of_rank(Rank rank, std::vector<Fact> facts) {
  return {.rank = rank, .host = rank == 0 ? "a" : "node-b", .facts = std::move(facts)};
}

TEST(CompareFacts, ATableSaysRankHostFieldAndBothValues) {
  const RankFacts right = of_rank(0, {{"optimizer.lr", "0.1"}, {"seed", "1"}, {"only here", "x"}});
  const RankFacts wrong = of_rank(1, {{"optimizer.lr", "0.25"}, {"seed", "1"}, {"new", "y\n\x1b"}});
  EXPECT_TRUE(compare_facts(right, "rank 0 has", std::vector{right}).ok());
  const Status status = compare_facts(right, "rank 0 has", std::vector{wrong});
  EXPECT_EQ(status.code(), Code::kRefused);
  EXPECT_THAT(status.message(),
              HasSubstr("\n  rank  host    field         has        rank 0 has"
                        "\n  1     node-b  optimizer.lr  0.25       0.1"
                        "\n  1     node-b  only here     (nothing)  x"
                        "\n  1     node-b  new           y\\n\\x1b    (nothing)"));
}

TEST(CompareFacts, AProblemOfOneRankIsToldWithItsHost) {
  RankFacts wrong = of_rank(1, {{"seed", "2"}});
  wrong.problem = Status(Code::kNotFound, "data: no such folder");
  const Status status =
      compare_facts(of_rank(0, {{"seed", "1"}}), "rank 0 has", std::vector{wrong});
  EXPECT_EQ(status.message(), "rank 1 (host node-b): data: no such folder");
}

TEST(CompareFacts, LongTablesAndValuesAreCut) {
  std::vector<Fact> one, other;
  for (int i = 0; i < 50; ++i) {
    one.push_back({"f" + std::to_string(i), "1"});
    other.push_back({"f" + std::to_string(i), std::string(1000, '2')});
  }
  const Status status =
      compare_facts(of_rank(0, one), "rank 0 has", std::vector{of_rank(1, other)});
  EXPECT_THAT(status.message(), HasSubstr("f19 "));
  EXPECT_THAT(status.message(), Not(HasSubstr("f20 ")));
  EXPECT_THAT(status.message(), HasSubstr("and 30 more differences"));
  EXPECT_LT(status.message().size(), 4000u);
}

TEST(CheckAgreement, AllRanksGetOneVerdictAndTheGroupStays) {
  std::mutex mutex;
  std::set<std::string> verdicts;
  test::on_ranks(3, [&](comm::Communicator& world) {
    EXPECT_TRUE(check_agreement(world, {{"seed", "1"}}).ok());
    const bool odd = world.rank() == 0;
    const Status status = check_agreement(world, {{"seed", odd ? "7" : "1"}});
    EXPECT_EQ(status.code(), Code::kRefused);
    EXPECT_THAT(status.message(), HasSubstr("most ranks have"));
    const Status problem =
        check_agreement(world, {}, odd ? Status() : Status(Code::kNotFound, "no data"));
    EXPECT_EQ(problem.code(), Code::kRefused);
    const Status common = check_agreement(world, {}, Status(Code::kNotFound, "no data"));
    EXPECT_EQ(common.message(), "no data");
    EXPECT_TRUE(check_agreement(world, {{"seed", "1"}}).ok()) << "the group still works";
    const std::lock_guard lock(mutex);
    verdicts.insert(status.message() + problem.message());
  });
  EXPECT_EQ(verdicts.size(), 1u);
}

// What one rank of a Trainer's run has that is not as the others'.
struct Odd {
  std::string name;
  std::function<void(TrainerOptions&)> change = [](TrainerOptions&) {};
  std::int64_t samples = 96;
  std::string field{};
};

TEST(CheckAgreement, TheTrainerRefusesUnequalOptionsAndData) {
  const std::vector<Odd> odds = {
      {"learning rate", [](auto& o) { o.optimizer.lr = 0.2; }, 96, "optimizer.lr"},
      {"momentum", [](auto& o) { o.optimizer.momentum = 0.5; }, 96, "optimizer.momentum"},
      {"seed", [](auto& o) { o.seed = 9; }, 96, "train.seed"},
      {"batch", [](auto& o) { o.global_batch = 8; }, 96, "train.global_batch"},
      {"micro-batches", [](auto& o) { o.micro_batches = 2; }, 96, "train.micro_batches"},
      {"sharding", [](auto& o) { o.sharding = data::Sharding::kContiguous; }, 96, "data.sharding"},
      {"resume", [](auto& o) { o.resume = true; }, 96, "resume"},
      {"loss scale", [](auto& o) { o.loss_scale.growth_interval = 9; }, 96, "loss scale"},
      {"samples", [](auto&) {}, 80, "training data: samples"},
  };
  for (const auto parameters :
       {Strategy::Parameters::kHostShared, Strategy::Parameters::kReplicated}) {
    test::on_ranks(2, [&](comm::Communicator& world) {
      for (const Odd& odd : odds) {
        TrainerOptions options;
        options.steps = 2;
        options.global_batch = 10;
        options.optimizer = {.lr = 0.1, .momentum = 0.9};
        options.checkpoint.directory = "never_written";
        options.strategy.parameters = parameters;
        const bool is_odd = world.rank() == 1;
        if (is_odd) odd.change(options);
        auto dataset = std::make_shared<test::ToyDataset>(is_odd ? odd.samples : 96);
        auto module = std::make_shared<test::ToyModule>();
        Trainer trainer(world, test::toy_task(module), dataset, {}, options);
        const auto end = trainer.run();
        EXPECT_EQ(end.status().code(), Code::kRefused) << odd.name;
        EXPECT_THAT(end.status().message(), HasSubstr(" " + odd.field + " ")) << odd.name;
        EXPECT_FALSE(trainer.started());
      }
    });
  }
}

TEST(CheckAgreement, TheTrainerRefusesAnotherModelAndABadSetup) {
  test::on_ranks(2, [&](comm::Communicator& world) {
    TrainerOptions options;
    options.steps = 2;
    options.global_batch = 10;
    auto module = std::make_shared<test::ToyModule>();
    if (world.rank() == 1) module->last->bias.requires_grad_(false);
    auto dataset = std::make_shared<test::ToyDataset>(96);
    const auto refused = Trainer(world, test::toy_task(module), dataset, {}, options).run();
    EXPECT_EQ(refused.status().code(), Code::kRefused);
    EXPECT_THAT(refused.status().message(), HasSubstr("model last.bias"));
    EXPECT_THAT(refused.status().message(), HasSubstr("Double [3] trained"));

    if (world.rank() == 1) options.steps = 0;
    const auto bad = Trainer(world, test::toy_task(module), dataset, {}, options).run();
    EXPECT_EQ(bad.status().code(), Code::kRefused);
    EXPECT_THAT(bad.status().message(), HasSubstr("rank 1 (host"));
    EXPECT_THAT(bad.status().message(), HasSubstr("set steps or epochs"));
  });
}

Result<observe::EndRecord> train_words(comm::Communicator& world,
                                       const std::shared_ptr<Words>& words,
                                       const OptimizerOptions& optimizer) {
  TrainerOptions options;
  options.steps = 6;
  options.global_batch = 12;
  options.optimizer = optimizer;
  Task task;
  task.module = words;
  task.forward = [words](const torch::Tensor& x) { return words->out(words->table(x).sum(1)); };
  task.loss = [](const torch::Tensor& y, const torch::Tensor& t) {
    return (y - t).square().mean();
  };
  return Trainer(world, task, std::make_shared<WordsDataset>(torch::kFloat32), {}, options).run();
}

// Rows of no gradient may not move, and those that have one move as on one rank.
TEST(Trainer, ExchangesAndUpdatesRowsOfSparseTables) {
  using Kind = OptimizerOptions::Kind;
  for (const Kind kind : {Kind::kSgd, Kind::kAdagrad}) {
    std::vector<torch::Tensor> tables(3);
    torch::Tensor first;
    std::vector<std::shared_ptr<Words>> words;
    for (int i = 0; i < 3; ++i) {
      torch::manual_seed(3);
      words.push_back(std::make_shared<Words>());
    }
    first = words[0]->table->weight.detach().clone();
    const auto train = [&](comm::Communicator& world, std::size_t i) {
      const auto end = train_words(world, words[i], {.kind = kind, .lr = 0.1});
      ASSERT_TRUE(end.ok()) << end.status().to_string();
      tables[i] = words[i]->table->weight.detach().clone();
    };
    test::on_ranks(1, [&](comm::Communicator& world) { train(world, 0); });
    test::on_ranks(2, [&](comm::Communicator& world) {
      train(world, static_cast<std::size_t>(1 + world.rank()));
    });
    EXPECT_TRUE(tables[1].equal(tables[2]));
    EXPECT_LT((tables[0] - tables[1]).abs().max().item<double>(), 1e-5);
    EXPECT_TRUE(tables[1].slice(0, 20).equal(first.slice(0, 20)));
    EXPECT_FALSE(tables[1].slice(0, 0, 20).equal(first.slice(0, 0, 20)));
  }
}

TEST(Trainer, RefusesSparseGradientsWhereOtherRowsWouldMove) {
  test::on_ranks(1, [&](comm::Communicator& world) {
    const auto end = train_words(world, std::make_shared<Words>(),
                                 {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.1});
    EXPECT_EQ(end.status().code(), Code::kInvalidArgument);
    EXPECT_THAT(end.status().message(), HasSubstr("'table.weight' has sparse gradients"));
    EXPECT_THAT(end.status().message(), HasSubstr("use sgd without momentum or adagrad"));
  });
}

// A frozen parameter changes which gradients travel.
TEST(CheckAgreement, DistributedDataParallelComparesWhatIsTrained) {
  test::on_ranks(2, [&](comm::Communicator& world) {
    auto module = std::make_shared<test::ToyModule>();
    if (world.rank() == 1) module->first->weight.requires_grad_(false);
    try {
      const DistributedDataParallel ddp(world, module);
      ADD_FAILURE() << "it was taken";
    } catch (const Error& e) {
      EXPECT_EQ(e.status().code(), Code::kRefused);
      EXPECT_THAT(e.status().message(), HasSubstr("model first.weight"));
    }
  });
}

TEST(RecipeFacts, LeaveOutWhatMayDifferBetweenRanks) {
  std::set<std::string_view> free;
  for (const RecipeField& field : recipe_fields()) {
    if (may_differ(field)) free.insert(field.key);
  }
  EXPECT_EQ(free, (std::set<std::string_view>{"threads", "data.path", "data.train",
                                              "data.validation", "data.test", "data.threads"}));
  Recipe here, there;
  there.data.path = "elsewhere";
  there.threads = 3;
  there.train.data_threads = 2;
  const auto text = [](const Recipe& recipe) {
    std::string out;
    for (const Fact& f : recipe_facts(recipe)) out += f.field + "=" + f.value + "\n";
    return out;
  };
  EXPECT_EQ(text(here), text(there));
  const std::vector<void (*)(TrainerOptions&)> odd = {
      [](auto& o) { o.optimizer.momentum = 0.5; }, [](auto& o) { o.micro_batches = 2; },
      [](auto& o) { o.strategy.pipeline = 2; }, [](auto& o) { o.strategy.schedule = "gpipe"; },
      [](auto& o) { o.strategy.tensor = 2; }};
  for (const auto change : odd) {
    Recipe other = there;
    change(other.train);
    EXPECT_NE(text(here), text(other));
  }
}

}  // namespace
}  // namespace stormo::train
