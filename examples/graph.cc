// A graph of segments of your own over several ranks: each rank computes some of the segments, and
// has only their parameters. What one reads of another is sent once.
//
//   stormo run -n 2 -- build/release/bin/example_graph
//
// Prints who computes what, and what crosses between the ranks. On one rank it trains the same
// model as a whole.
#include <cstdio>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/model/dense.h>
#include <stormo/model/graph.h>
#include <stormo/model/loss.h>
#include <stormo/parallel/search/partition_graph.h>
#include <stormo/stormo.h>
#include <torch/torch.h>

namespace {

using stormo::model::Dense;
using stormo::model::Graph;

constexpr std::int64_t kInput = 32, kHidden = 64, kJoined = 16, kClasses = 4;
constexpr int kTowers = 4;

/// Four towers that read the input, and a segment that reads them all.
std::shared_ptr<Graph> towers() {
  auto graph = std::make_shared<Graph>(kInput);
  const auto relu = Dense::Activation::kRelu;
  std::vector<std::string> tops;
  for (int t = 0; t < kTowers; ++t) {
    const std::string name = "tower" + std::to_string(t);
    graph->add(name + "_1", std::make_shared<Dense>(kInput, kHidden, relu), {Graph::kInput},
               {kHidden});
    graph->add(name + "_2", std::make_shared<Dense>(kHidden, kJoined, relu), {name + "_1"},
               {kJoined});
    tops.push_back(name + "_2");
  }
  graph->add("classes",
             std::make_shared<Dense>(kTowers * kJoined, kClasses, Dense::Activation::kNone), tops,
             {kClasses});
  return graph;
}

struct Net final : stormo::model::Chain {
  explicit Net(std::shared_ptr<Graph> graph) : Chain("Net") { append("graph", std::move(graph)); }
};

}  // namespace

int main() {
  stormo::World world = stormo::init();
  torch::manual_seed(1);  // the same model and data everywhere
  const std::shared_ptr<Graph> graph = towers();
  if (world.size() > 1) {
    const auto partition =
        stormo::parallel::partition(graph->graph(), world.size()).take_or_throw();
    if (world.rank() == 0) {
      std::fputs(stormo::plan::describe(graph->graph(), partition).c_str(), stdout);
    }
    graph->divide(partition);
  }

  const torch::Tensor x = torch::randn({2048, kInput});
  const torch::Tensor y = x.narrow(1, 0, kClasses).argmax(1);
  const auto net = std::make_shared<Net>(graph);
  stormo::train::Task task;
  task.module = net;
  task.forward = [net](const torch::Tensor& in) { return net->forward(in); };
  task.loss = stormo::model::cross_entropy;
  stormo::train::TrainerOptions options;
  options.steps = 300;
  options.global_batch = 64;
  options.optimizer.lr = 0.1;
  options.strategy.tensor = world.size();  // all of them compute one replica together
  stormo::train::Trainer trainer(
      world, std::move(task),
      stormo::data::TensorDataset::create(x, y, torch::kFloat32).take_or_throw(), {}, options);
  const auto end = trainer.run().take_or_throw();

  const double correct = net->forward(x).argmax(1).eq(y).to(torch::kFloat64).mean().item<double>();
  if (world.rank() == 0) {
    std::printf("loss %.3f after %lld steps, %.1f %% of the training data correct\n",
                end.train_loss, static_cast<long long>(end.steps), 100 * correct);
  }
  return correct > 0.8 ? 0 : 1;
}
