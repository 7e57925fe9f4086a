// Training on data of your own, with the ready-made loop:
//
//   stormo run -n 2 -- build/release/bin/example_custom_dataset ddp runs/spirals
//   stormo run -n 3 -- build/release/bin/example_custom_dataset ddp runs/spirals resume
//
// The first word is the strategy: ddp, averaging, or ssp. The points of two spirals, one for each
// class. A Dataset answers for samples by number; order, sharding among the ranks, prefetching,
// evaluation and checkpoints are the Trainer's.
#include <cmath>
#include <cstdio>
#include <stdexcept>
#include <string>

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

/// Prints what the run reports; rank 0's alone is asked. Without it nothing is shown, no warnings
/// either.
class Printer final : public stormo::observe::RunObserver {
  void on_start(const stormo::observe::StartRecord& r) override {
    std::printf("%s on %d ranks, from step %lld\n", r.strategy.c_str(), r.ranks,
                static_cast<long long>(r.first_step));
    for (const auto& c : r.changed) {
      std::printf("%s was %s, is %s\n", c.key.c_str(), c.before.c_str(), c.now.c_str());
    }
  }
  void on_eval(const stormo::observe::EvalRecord& r) override {
    std::printf("step %lld: %s loss %.4f, accuracy %.3f over %lld points\n",
                static_cast<long long>(r.step), r.split.c_str(), r.loss, r.accuracy.value_or(0),
                static_cast<long long>(r.samples));
  }
  void on_warning(const stormo::observe::WarningRecord& r) override {
    std::fprintf(stderr, "warning: %s\n", r.message.c_str());
  }
};

stormo::train::TrainerOptions options_of(const std::string& way) {
  using stormo::train::Strategy;
  stormo::train::TrainerOptions options;
  options.name = "spirals";
  options.epochs = 30;
  options.global_batch = 64;
  options.optimizer = {.kind = stormo::train::OptimizerOptions::Kind::kAdamW, .lr = 1e-2};
  options.data_threads = 2;
  options.checkpoint.every = 100;
  if (way == "ddp") {
    options.strategy.kind = Strategy::Kind::kDdp;
  } else if (way == "averaging") {
    options.strategy.kind = Strategy::Kind::kParameterAveraging;
    options.strategy.period = 4;
  } else if (way == "ssp") {
    options.strategy.kind = Strategy::Kind::kParameterServer;
    options.servers.policy = {.kind = stormo::protocol::PolicyOptions::Kind::kSsp, .bound = 3};
  } else {
    throw std::runtime_error("no strategy '" + way + "': ddp, averaging or ssp");
  }
  return options;
}

void print(const stormo::observe::EndRecord& end) {
  std::printf("%lld steps, %lld samples, %.1f s, test accuracy %.3f, weights %s\n",
              static_cast<long long>(end.steps), static_cast<long long>(end.samples), end.wall_s,
              end.test_accuracy.value_or(0), end.weights_hash.c_str());
  for (const auto& worker : end.staleness) {  // of parameter servers
    std::printf("staleness %.2f, at most %lld, of %lld gradients\n", worker.mean,
                static_cast<long long>(worker.max), static_cast<long long>(worker.gradients));
  }
  if (!end.checkpoint.empty()) std::printf("saved as %s\n", end.checkpoint.c_str());
}

int main(int argc, char** argv) {
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

  stormo::train::TrainerOptions options = options_of(argc > 1 ? argv[1] : "ddp");
  if (argc > 2) options.checkpoint.directory = argv[2];
  options.resume = argc > 3 && argv[3] == std::string("resume");
  options.overwrite = argc > 3 && argv[3] == std::string("overwrite");
  if (options.resume) options.epochs += 10;
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
  if (world.rank() == 0) print(*end);
  return end->test_accuracy.value_or(0) > 0.95 ? 0 : 1;
}
