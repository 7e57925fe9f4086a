#pragma once

// Training a table with sparse gradients, on ranks that are threads.
#include <unistd.h>

#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/train/run/trainer.h>

#include "sharded_problem.h"
#include "tests/unit/train/seeded.h"
#include "words.h"

namespace stormo::test {

inline std::shared_ptr<Words> make_words() {
  const Seeded seeded(3);
  auto words = std::make_shared<Words>();
  words->to(torch::kFloat64);
  return words;
}

inline train::Task words_task(const std::shared_ptr<Words>& words) {
  train::Task task;
  task.module = words;
  task.forward = [words](const torch::Tensor& x) { return words->out(words->table(x).sum(1)); };
  task.loss = [](const torch::Tensor& y, const torch::Tensor& t) {
    return (y - t).square().mean();
  };
  return task;
}

class WordsRun : public testing::Test {
 protected:
  WordsRun() : folder(testing::TempDir() + "stormo_words_" + std::to_string(getpid())) {
    std::filesystem::remove_all(folder);
    options.steps = 20;
    options.global_batch = 12;
    options.optimizer = {.lr = 0.1};
    options.strategy = {.kind = train::Strategy::Kind::kParameterServer};
  }
  ~WordsRun() override { std::filesystem::remove_all(folder); }

  struct Outcome {
    observe::EndRecord end;
    std::vector<torch::Tensor> values;  // table, weight and bias
  };
  Result<Outcome> try_run(int ranks) {
    std::vector<Result<Outcome>> outcomes(static_cast<std::size_t>(ranks), Outcome());
    auto group = comm::make_inproc_group(ranks).take_or_throw();
    test::on_ranks(group, [&](comm::Communicator& world) {
      outcomes[static_cast<std::size_t>(world.rank())] = run_rank(world, options);
    });
    for (const auto& o : outcomes) {
      EXPECT_EQ(o.ok(), outcomes[0].ok());
      if (!o.ok()) continue;
      EXPECT_EQ(o->end.weights_hash, outcomes[0]->end.weights_hash);
    }
    return std::move(outcomes[0]);
  }
  Outcome run(int ranks) { return try_run(ranks).take_or_throw(); }
  std::string refused(int ranks = 2) { return try_run(ranks).status().message(); }
  static Result<Outcome> run_rank(comm::Communicator& world, const train::TrainerOptions& how) {
    const auto words = make_words();
    train::Trainer trainer(world, words_task(words),
                           std::make_shared<WordsDataset>(torch::kFloat64), {}, how);
    STORMO_ASSIGN_OR_RETURN(const observe::EndRecord end, trainer.run());
    Outcome out{end, {}};
    for (const torch::Tensor& p : words->parameters()) out.values.push_back(p.detach().clone());
    return out;
  }

  train::TrainerOptions options;
  std::string folder;
};

}  // namespace stormo::test
