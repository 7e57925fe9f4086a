// Replicas as threads of one process: every way of training as it is, against one device.
#include <stormo/train/world/run_replicas.h>

#include <array>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <vector>

#include <stormo/train/reduction/gradient_reducer.h>
#include <stormo/train/run/trainer.h>
#include <stormo/train/state/checkpoint.h>
#include <stormo/train/wrap/distributed_data_parallel.h>

#include "tests/unit/train/sharded_problem.h"
#include "toy.h"

namespace stormo::train {
namespace {

using test::make_toy_module;
using test::ToyModule;

constexpr int kSteps = 4;
constexpr std::int64_t kUnionRows = 10;

test::Problem points() {
  return {.name = "points", .build = {}, .draw = [](std::int64_t rows) {
            return test::Batch{torch::randn({rows, 20}), torch::randint(3, {rows})};
          }};
}

std::vector<std::shared_ptr<ToyModule>> modules_of(int n) {
  std::vector<std::shared_ptr<ToyModule>> out;
  for (int r = 0; r < n; ++r) out.push_back(make_toy_module(1 + static_cast<std::uint64_t>(r)));
  return out;
}

torch::Tensor loss_of(ToyModule& module, const test::Batch& batch) {
  return model::cross_entropy(module.forward(batch.x), batch.target);
}

std::shared_ptr<ToyModule> trained_alone(const std::vector<test::Batch>& batches) {
  auto module = make_toy_module(1);
  torch::optim::SGD sgd(module->parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
  for (const test::Batch& batch : batches) {
    sgd.zero_grad();
    loss_of(*module, batch).backward();
    sgd.step();
  }
  return module;
}

double distance(const torch::nn::Module& a, const torch::nn::Module& b) {
  double worst = 0;
  const auto named = b.named_parameters();
  for (const auto& p : a.named_parameters()) {
    worst = std::max(worst, (p.value() - named[p.key()]).abs().max().item<double>());
  }
  return worst;
}

/// This replica's rows of a batch; the first replicas have one more.
test::Batch part_of(const test::Batch& batch, const comm::Communicator& world) {
  return {batch.x.tensor_split(world.size())[static_cast<std::size_t>(world.rank())],
          batch.target.tensor_split(world.size())[static_cast<std::size_t>(world.rank())]};
}

TEST(RunReplicas, StayEqualAndMatchOneDevice) {
  const auto batches = points().batches(kSteps, kUnionRows);
  const auto alone = trained_alone(batches);
  for (const int n : {2, 4}) {
    const auto modules = modules_of(n);
    std::array<std::set<std::string>, kSteps> hashes;
    std::mutex mutex;
    run_replicas(n, [&](comm::Communicator& world) {
      ToyModule& module = *modules[static_cast<std::size_t>(world.rank())];
      DistributedDataParallel ddp(world, modules[static_cast<std::size_t>(world.rank())]);
      torch::optim::SGD sgd(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
      for (std::size_t step = 0; step < kSteps; ++step) {
        const test::Batch mine = part_of(batches[step], world);
        sgd.zero_grad();
        ddp.set_weight(static_cast<double>(mine.x.size(0)));
        loss_of(module, mine).backward();
        sgd.step();
        const std::lock_guard lock(mutex);
        hashes[step].insert(weights_hash(named_state(module)));
      }
    });
    for (const auto& of_step : hashes) EXPECT_EQ(of_step.size(), 1u) << n;
    EXPECT_LT(distance(*modules.front(), *alone), 1e-10) << n;
  }
}

/// Weights and bytes between hosts after a few steps whose gradients `algorithm` averages.
struct Reduced {
  std::shared_ptr<ToyModule> module;
  std::vector<std::uint64_t> bytes;  // by rank
};

Reduced reduced_by(const std::string& algorithm, const std::vector<test::Batch>& batches) {
  const auto group = comm::make_hosts({2, 2});
  const auto modules = modules_of(4);
  Reduced out{modules.front(), std::vector<std::uint64_t>(4)};
  run_replicas(group, [&](comm::Communicator& world) {
    const auto rank = static_cast<std::size_t>(world.rank());
    ToyModule& module = *modules[rank];
    { const DistributedDataParallel equal_start(world, modules[rank]); }
    const auto parameters = trainable_parameters(module);
    GradientReducer reducer(world, parameters);
    reducer.set_plan(plan_of_replicas(parameters, world.size(),
                                      {.overlap = Overlap::at_the_end(), .algorithm = algorithm}));
    torch::optim::SGD sgd(module.parameters(), torch::optim::SGDOptions(0.1).momentum(0.9));
    const std::uint64_t before = world.bytes_sent();
    for (const test::Batch& batch : batches) {
      const test::Batch mine = part_of(batch, world);
      sgd.zero_grad();
      loss_of(module, mine).backward();
      reducer.set_weight(static_cast<double>(mine.x.size(0)));
      throw_if_error(reducer.reduce());
      sgd.step();
    }
    out.bytes[rank] = world.bytes_sent() - before;
  });
  return out;
}

TEST(RunReplicas, TheReducerChangesOnlyTheCounters) {
  const auto batches = points().batches(kSteps, kUnionRows);
  const auto alone = trained_alone(batches);
  std::set<std::vector<std::uint64_t>> counters;
  for (const char* algorithm : {"ring_all_reduce", "hierarchical_all_reduce", "star_all_reduce"}) {
    const Reduced reduced = reduced_by(algorithm, batches);
    EXPECT_LT(distance(*reduced.module, *alone), 1e-10) << algorithm;
    counters.insert(reduced.bytes);
  }
  EXPECT_EQ(counters.size(), 3u);
}

TEST(RunReplicas, TrainerRunsAsItIs) {
  const auto dataset = std::make_shared<test::ToyDataset>(47);
  TrainerOptions options;
  options.steps = kSteps;
  options.global_batch = 10;
  options.optimizer = {.lr = 0.05, .momentum = 0.9};
  options.verify_every = 1;  // compares replicas bitwise
  for (const auto kind : {Strategy::Kind::kMirrored, Strategy::Kind::kDdp}) {
    options.strategy.kind = kind;
    const auto alone = make_toy_module(1);
    const auto modules = modules_of(2);  // of which the first is equal to it
    const auto train = [&](comm::Communicator& world, const std::shared_ptr<ToyModule>& module) {
      Trainer trainer(world, test::toy_task(module), dataset, {}, options);
      return trainer.run().take_or_throw();
    };
    double wanted = 0, got = 0;
    run_replicas(1, [&](auto& world) { wanted = train(world, alone).train_loss; });
    run_replicas(2, [&](auto& world) {
      const auto end = train(world, modules[static_cast<std::size_t>(world.rank())]);
      if (world.rank() == 0) got = end.train_loss;
    });
    EXPECT_NEAR(got, wanted, 1e-10) << static_cast<int>(kind);
  }
}

TEST(RunReplicas, StatisticsOfBatchNormStayLocal) {
  std::vector<std::shared_ptr<torch::nn::BatchNorm1dImpl>> norms;
  for (int r = 0; r < 2; ++r) norms.push_back(std::make_shared<torch::nn::BatchNorm1dImpl>(3));
  const torch::Tensor x = torch::arange(24.0).reshape({8, 3});
  run_replicas(2, [&](comm::Communicator& world) {
    const auto norm = norms[static_cast<std::size_t>(world.rank())];
    const DistributedDataParallel ddp(world, norm);
    norm->forward(x.narrow(0, 4 * world.rank(), 4)).square().sum().backward();
  });
  for (int r = 0; r < 2; ++r) {
    torch::nn::BatchNorm1d alone(3);
    alone->forward(x.narrow(0, 4 * r, 4));
    EXPECT_TRUE(
        torch::equal(norms[static_cast<std::size_t>(r)]->running_mean, alone->running_mean));
  }
}

TEST(RunReplicas, TheFirstExceptionArrivesWithItsType) {
  std::mutex mutex;
  std::vector<std::string> others;
  EXPECT_THROW(run_replicas(4,
                            [&](comm::Communicator& world) {
                              if (world.rank() == 2) throw std::out_of_range("row 12");
                              const Status status = world.barrier();
                              const std::lock_guard lock(mutex);
                              others.push_back(status.to_string());
                              throw_if_error(status);
                            }),
               std::out_of_range);
  ASSERT_EQ(others.size(), 3u);
  for (const std::string& status : others) {
    EXPECT_NE(status.find("row 12"), std::string::npos) << status;
  }
  EXPECT_THROW(run_replicas(0, [](auto&) {}), Error);
}

}  // namespace
}  // namespace stormo::train
