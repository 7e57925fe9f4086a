// A way of training that Stormo does not have: gradients are averaged parameter by parameter, the
// last one first, and each is updated as soon as it is. Trains a network by it and by plain
// replicas; prints rank, size and both weights' hashes, which must be equal.
#include <cstdio>
#include <string>

#include <stormo/parallel/pass.h>
#include <stormo/stormo.h>
#include <torch/torch.h>

namespace {

using stormo::plan::Action;
using stormo::plan::ActionKind;
using stormo::plan::StepPlan;

/// Moves the update of each parameter behind its own all-reduce.
stormo::Result<StepPlan> parameter_wise(const StepPlan& in) {
  StepPlan out = in;
  out.strategy += "+parameter_wise";
  out.actions.clear();
  for (const Action& a : in.actions) {
    if (a.kind == ActionKind::kUpdate) continue;
    if (a.kind != ActionKind::kAllReduce) {
      out.actions.push_back(a);
      continue;
    }
    for (int p = a.range.last; p >= a.range.first; --p) {
      Action one = a;
      one.range = {p, p};
      out.actions.push_back(one);
      out.actions.push_back({.kind = ActionKind::kUpdate, .range = {p, p}});
    }
  }
  return out;
}

struct Net : torch::nn::Module {
  torch::Tensor forward(torch::Tensor x) { return out->forward(torch::relu(hidden->forward(x))); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(16, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 3));
};

std::string train(stormo::World& world, std::vector<stormo::parallel::Pass> passes) {
  torch::manual_seed(7);
  const auto net = std::make_shared<Net>();
  stormo::train::Task task;
  task.module = net;
  task.forward = [net](const torch::Tensor& x) { return net->forward(x); };
  task.loss = [](const torch::Tensor& y, const torch::Tensor& t) {
    return torch::nn::functional::cross_entropy(y, t);
  };
  const torch::Tensor x = torch::randn({240, 16});
  const auto data =
      stormo::data::TensorDataset::create(x, x.slice(1, 0, 3).argmax(1), torch::kFloat32)
          .take_or_throw();
  stormo::train::TrainerOptions options;
  options.strategy.kind = stormo::train::Strategy::Kind::kMirrored;
  options.passes = std::move(passes);
  options.optimizer = {.kind = stormo::train::OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.steps = 25;
  options.global_batch = 24;
  stormo::train::Trainer trainer(world, task, data, {}, options);
  return trainer.run().take_or_throw().weights_hash;
}

}  // namespace

int main() {
  stormo::World world = stormo::init();
  const std::string plain = train(world, {}), own = train(world, {parameter_wise});
  std::printf("rank %d of %d: %s, weights %s\n", world.rank(), world.size(),
              plain == own ? "as plain replicas" : "NOT as plain replicas", own.c_str());
}
