#include <stormo/train/loop/last_batch.h>

#include <algorithm>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/data/sampler.h>
#include <stormo/tensor/generator.h>
#include <stormo/train/run/trainer.h>

#include "toy.h"

namespace stormo::train {
namespace {

using test::ToyDataset;

/// The smallest number of samples that a rank computes at once in two epochs, by the sampler and
/// libtorch's division into micro-batches; ranks and micro-batches without samples do not count.
std::int64_t smallest_at_once(const TrainerOptions& o, std::int64_t samples, int ranks) {
  std::int64_t smallest = samples;
  for (int rank = 0; rank < ranks; ++rank) {
    data::Sampler sampler(samples, o.global_batch, 1, true, rank, ranks);
    for (std::int64_t cursor = 0, step = 0; cursor < 2 * samples; ++step) {
      if (o.steps > 0 && step == o.steps) break;
      const data::Sampler::Slice slice = sampler.slice(cursor);
      cursor = slice.next;
      const auto rows = torch::zeros({std::ssize(slice.indices), 1});
      for (const torch::Tensor& micro : rows.tensor_split(o.micro_batches)) {
        if (micro.size(0) > 0) smallest = std::min(smallest, micro.size(0));
      }
    }
  }
  return smallest;
}

TEST(SingleSamples, AreKnownBeforeTheRun) {
  int singles = 0;
  for (const int ranks : {1, 2, 3}) {
    for (const std::int64_t micro_batches : {1, 2, 3}) {
      for (const std::int64_t samples : {2, 7, 12, 13, 25}) {
        for (const std::int64_t batch : {3, 4, 6, 12, 24}) {
          for (const std::int64_t steps : {0, 1, 2, 5}) {
            TrainerOptions o;
            o.global_batch = batch;
            o.micro_batches = micro_batches;
            o.steps = steps;
            const bool single = smallest_at_once(o, samples, ranks) == 1;
            EXPECT_EQ(computes_single_samples(o, samples, ranks), single)
                << ranks << " ranks, " << micro_batches << " micro-batches, " << samples
                << " samples, batch " << batch << ", " << steps << " steps";
            if (!single) continue;
            ++singles;
            o.global_batch = batch_without_single_samples(o, samples, ranks);
            if (o.global_batch > 0) {
              EXPECT_GT(smallest_at_once(o, samples, ranks), 1);
            }
          }
        }
      }
    }
  }
  EXPECT_GT(singles, 50);
}

struct Normalised : torch::nn::Module {
  Normalised()
      : first(register_module("first", torch::nn::Linear(20, 8))),
        norm(register_module("norm", torch::nn::BatchNorm1d(8))),
        drop(register_module("drop", torch::nn::Dropout(0.5))),
        last(register_module("last", torch::nn::Linear(8, 3))) {
    to(torch::kFloat64);
  }
  torch::Tensor forward(const torch::Tensor& x) { return last(drop(norm(first(x)))); }
  torch::nn::Linear first;
  torch::nn::BatchNorm1d norm;
  torch::nn::Dropout drop;
  torch::nn::Linear last;
};

struct NormalisedRun {
  std::shared_ptr<Normalised> module = std::make_shared<Normalised>();
  TrainerOptions options;
  bool begun = false;  // a loss was computed

  NormalisedRun() {
    options.global_batch = 10;
    options.epochs = 1;
    options.optimizer.lr = 0.01;
  }
  Result<observe::EndRecord> run(std::int64_t samples) {
    auto world = std::move(comm::make_inproc_group(1).take_or_throw()[0]);
    Task task;
    task.module = module;
    task.forward = [m = module](const torch::Tensor& x) { return m->forward(x); };
    task.loss = [this](const torch::Tensor& output, const torch::Tensor& target) {
      begun = true;
      return model::cross_entropy(output, target);
    };
    Trainer trainer(*world, task, std::make_shared<ToyDataset>(samples), {}, options);
    return trainer.run();
  }
};

TEST(SingleSamples, OfBatchNormAreRefusedBeforeTheFirstStep) {
  NormalisedRun job;
  const torch::Tensor generator = tensor::generator_state();
  const auto end = job.run(41);  // four steps of 10, and one of 1
  ASSERT_FALSE(end.ok());
  const std::string& message = end.status().message();
  for (const char* part : {"BatchNorm", "more than 1 value per channel", "global batch of 9"}) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  }
  EXPECT_FALSE(job.begun);
  // the module is as it was
  EXPECT_EQ(job.module->norm->num_batches_tracked.item<std::int64_t>(), 0);
  EXPECT_EQ(job.module->norm->running_mean.abs().max().item<double>(), 0);
  EXPECT_TRUE(tensor::generator_state().equal(generator));
}

TEST(SingleSamples, AreRefusedOnlyWhereTheModelCannotComputeThem) {
  EXPECT_TRUE(NormalisedRun().run(40).ok());
  EXPECT_TRUE(NormalisedRun().run(42).ok());
  NormalisedRun before_the_end;
  before_the_end.options.steps = 4;
  EXPECT_TRUE(before_the_end.run(41).ok());

  struct Averaged : torch::nn::Module {
    Averaged()
        : norm(register_module("norm", torch::nn::BatchNorm1d(4))),
          last(register_module("last", torch::nn::Linear(4, 3))) {
      to(torch::kFloat64);
    }
    torch::Tensor forward(const torch::Tensor& x) { return last(norm(x.view({-1, 4, 5})).mean(2)); }
    torch::nn::BatchNorm1d norm;
    torch::nn::Linear last;
  };
  const auto module = std::make_shared<Averaged>();  // five values per channel and sample
  Task task;
  task.module = module;
  task.forward = [module](const torch::Tensor& x) { return module->forward(x); };
  TrainerOptions options;
  options.global_batch = 10;
  options.epochs = 1;
  EXPECT_TRUE(check_single_samples(task, ToyDataset(41), options, 1).ok());
}

}  // namespace
}  // namespace stormo::train
