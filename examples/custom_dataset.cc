// Training on data of your own, with the ready-made loop:
//
//   stormo run -n 2 -- build/release/bin/example_custom_dataset
//
// The points of two spirals, one for each class. A Dataset answers for samples by number; order,
// sharding among the ranks, prefetching, evaluation and checkpoints are the Trainer's.
#include <cmath>
#include <cstdio>

#include <stormo/stormo.h>
#include <torch/torch.h>

class Spirals final : public stormo::data::Dataset {
 public:
  Spirals(std::int64_t points, double offset) : points_(points), offset_(offset) {}

  std::int64_t size() const override { return points_; }

  // Called by several threads at a time; equal numbers give equal samples on every rank.
  stormo::data::Batch get(std::span<const std::int64_t> indices, std::int64_t) const override {
    const auto rows = static_cast<std::int64_t>(indices.size());
    stormo::data::Batch batch{torch::empty({rows, 2}), torch::empty({rows}, torch::kInt64)};
    auto* point = batch.input.mutable_data_ptr<float>();
    auto* target = batch.target.mutable_data_ptr<std::int64_t>();
    for (const std::int64_t index : indices) {
      const std::int64_t spiral = index % 2;
      const double turn = 6 * (static_cast<double>(index) + offset_) / static_cast<double>(points_);
      const double angle = turn + 3.14159265 * static_cast<double>(spiral);
      *point++ = static_cast<float>(turn * std::cos(angle) / 3);
      *point++ = static_cast<float>(turn * std::sin(angle) / 3);
      *target++ = spiral;
    }
    return batch;
  }

 private:
  std::int64_t points_;
  double offset_;
};

/// Prints what the run reports; rank 0's alone is asked.
class Printer final : public stormo::observe::RunObserver {
  void on_eval(const stormo::observe::EvalRecord& r) override {
    std::printf("step %lld: %s loss %.4f, accuracy %.3f over %lld points\n",
                static_cast<long long>(r.step), r.split.c_str(), r.loss, r.accuracy.value_or(0),
                static_cast<long long>(r.samples));
  }
};

int main() {
  stormo::World world = stormo::init();
  torch::manual_seed(1);
  torch::nn::Sequential net(torch::nn::Linear(2, 64), torch::nn::Tanh(), torch::nn::Linear(64, 64),
                            torch::nn::Tanh(), torch::nn::Linear(64, 2));
  stormo::train::Task task;
  task.module = net.ptr();
  task.forward = [net](const torch::Tensor& x) mutable { return net->forward(x); };
  task.loss = [](const torch::Tensor& output, const torch::Tensor& target) {
    return torch::nn::functional::cross_entropy(output, target);
  };
  task.correct = [](const torch::Tensor& output, const torch::Tensor& target) {
    return output.argmax(1).eq(target).sum().item<std::int64_t>();
  };

  stormo::train::TrainerOptions options;
  options.name = "spirals";
  options.epochs = 30;
  options.global_batch = 64;
  options.optimizer = {.kind = stormo::train::OptimizerOptions::Kind::kAdamW, .lr = 1e-2};
  options.data_threads = 2;
  stormo::train::Trainer trainer(
      world, task, std::make_shared<Spirals>(1000, 0.0),
      {{.name = "test", .dataset = std::make_shared<Spirals>(500, 0.25)}}, options);
  Printer printer;
  trainer.set_observer(&printer);
  const auto end = trainer.run();
  if (!end.ok()) {
    std::fprintf(stderr, "%s\n", end.status().message().c_str());
    return 1;
  }
  return end->test_accuracy.value_or(0) > 0.95 ? 0 : 1;
}
