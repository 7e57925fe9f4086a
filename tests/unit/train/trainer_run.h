#pragma once

#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/train/run/trainer.h>

#include "module_values.h"
#include "toy.h"

// Runs of the Trainer on ranks that are threads.
namespace stormo::test {

inline double distance(const Values& a, const Values& b) {
  double most = 0;
  for (const auto& [name, value] : a) {
    most = std::max(most, (value - b.at(name)).abs().max().item<double>());
  }
  return most;
}

class TrainerRun : public testing::Test {
 protected:
  explicit TrainerRun(const std::string& name)
      : folder(testing::TempDir() + name + std::to_string(getpid())) {
    options.global_batch = 12;
    options.steps = 20;
    options.log_every = 1;
    options.seed = 11;
    std::filesystem::remove_all(folder);
  }
  ~TrainerRun() override { std::filesystem::remove_all(folder); }

  struct Outcome {
    observe::EndRecord end;
    Values values;
    std::vector<observe::StepRecord> steps;
    std::vector<observe::EvalRecord> evals;
  };
  /// What rank 0 got. Every rank must end in the same way.
  Result<Outcome> try_run(int ranks) {
    auto group = make_group(ranks).take_or_throw();
    std::vector<Result<Outcome>> outcomes(static_cast<std::size_t>(ranks), Outcome());
    std::vector<std::thread> threads;
    for (int r = 0; r < ranks; ++r) {
      threads.emplace_back([this, &group, &outcomes, r] {
        const auto rank = static_cast<std::size_t>(r);
        outcomes[rank] = run_rank(*group[rank]);
      });
    }
    for (std::thread& t : threads) t.join();
    for (const auto& o : outcomes) {
      EXPECT_EQ(o.status().code(), outcomes[0].status().code()) << o.status().to_string();
      if (o.ok()) {
        EXPECT_EQ(o->end.weights_hash, outcomes[0]->end.weights_hash);
      }
    }
    return std::move(outcomes[0]);
  }
  Outcome run(int ranks) { return try_run(ranks).take_or_throw(); }
  /// The run from where another one has saved.
  Outcome resumed(int ranks) {
    options.overwrite = false;
    options.resume = true;
    Outcome out = run(ranks);
    options.resume = false;
    options.overwrite = true;
    return out;
  }
  /// Runs of 20 steps that go on from a save end in the bits of one that goes through.
  void expect_bits_of_whole_run(int ranks, const std::vector<std::int64_t>& saved_after,
                                const std::string& what) {
    options.overwrite = true;
    options.steps = 20;
    const Outcome whole = run(ranks);
    for (const std::int64_t steps : saved_after) {
      options.steps = steps;
      run(ranks);
      options.steps = 20;
      EXPECT_EQ(resumed(ranks).end.weights_hash, whole.end.weights_hash) << steps << ", " << what;
    }
  }

  train::TrainerOptions options;
  std::vector<std::string> accepted_changes;
  std::int64_t verify_state = 0;
  std::int64_t freeze_after = 0;
  std::shared_ptr<data::Dataset> dataset = std::make_shared<ToyDataset>(96);
  std::string folder;
  std::function<Result<std::vector<std::unique_ptr<comm::Communicator>>>(int ranks)> make_group =
      comm::make_inproc_group;
  std::function<train::Task()> make_task = [] { return toy_task(make_toy_module(3)); };
  std::function<torch::Device(Rank rank)> device;  // of the module; empty: the CPU
  std::function<void(Rank rank)> in_loss;          // of every step
  std::function<void(Rank rank, const plan::Action& action)> on_action;

 private:
  struct Recorder final : observe::RunObserver {
    void on_step(const observe::StepRecord& r) override { steps.push_back(r); }
    void on_eval(const observe::EvalRecord& r) override { evals.push_back(r); }
    std::vector<observe::StepRecord> steps;
    std::vector<observe::EvalRecord> evals;
  };
  Result<Outcome> run_rank(comm::Communicator& world) {
    train::Task task = make_task_alone();
    if (device) task.module->to(device(world.rank()));
    task.loss = [this, &world, loss = task.loss](const torch::Tensor& output,
                                                 const torch::Tensor& target) {
      if (in_loss && module_trains(output)) in_loss(world.rank());
      return loss(output, target);
    };
    Recorder recorder;
    train::Trainer trainer(world, task, dataset,
                           {{"validation", std::make_shared<ToyDataset>(31), 7}}, options);
    trainer.set_observer(&recorder);
    trainer.accept_changes(accepted_changes);
    trainer.verify_state(verify_state);
    trainer.freeze_after(freeze_after);
    if (on_action) trainer.on_action([&](const plan::Action& a) { on_action(world.rank(), a); });
    STORMO_ASSIGN_OR_RETURN(const observe::EndRecord end, trainer.run());
    return Outcome{end, values_of(*task.module), recorder.steps, recorder.evals};
  }
  static bool module_trains(const torch::Tensor& output) { return output.requires_grad(); }
  /// The generator that the values come from is that of the process.
  train::Task make_task_alone() const {
    static std::mutex making;
    const std::lock_guard lock(making);
    return make_task();
  }
};

}  // namespace stormo::test
