// Graphs of segments of which each rank computes a part: ranks do what the plan says, send each
// state once as predicted, and train as one process does.
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <torch/torch.h>

#include <stormo/base/temporary_folder.h>
#include <stormo/data/tensor_dataset.h>
#include <stormo/model/dense.h>
#include <stormo/model/graph.h>
#include <stormo/model/loss.h>
#include <stormo/parallel/search/partition_graph.h>
#include <stormo/train/run/trainer.h>

#include "tests/unit/train/run_of_one_process.h"

namespace stormo::train {
namespace {

using model::Dense;
using model::Graph;
using test::Batch;
using test::Problem;
using Way = test::CutWay;

constexpr std::int64_t kInput = 6, kClasses = 10;

std::shared_ptr<Dense> dense(std::int64_t in, std::int64_t out) {
  return std::make_shared<Dense>(in, out, Dense::Activation::kRelu, model::DenseCut::kNone);
}

/// Three towers of two segments, the second and third of which read what the first has, a segment
/// that reads two of them, and one that reads all.
std::shared_ptr<Graph> towers(int ranks) {
  auto graph = std::make_shared<Graph>(kInput);
  graph->add("a1", dense(kInput, 8), {"input"}, {8});
  graph->add("b1", dense(kInput + 8, 7), {"input", "a1"}, {7});
  graph->add("c1", dense(8, 5), {"a1"}, {5});
  graph->add("a2", dense(8, 4), {"a1"}, {4});
  graph->add("b2", dense(7, 4), {"b1"}, {4});
  graph->add("c2", dense(5, 3), {"c1"}, {3});
  graph->add("bc", dense(7, 4), {"b2", "c2"}, {4});
  graph->add("all", dense(11, 9), {"a2", "bc", "c2"}, {9});
  if (ranks > 1) graph->divide(parallel::partition(graph->graph(), ranks).take_or_throw());
  return graph;
}

/// What is trained besides the graph.
enum class Around { kNothing, kHead, kBoth };

struct GraphModel : model::Chain {
  GraphModel(int ranks, Around around) : Chain("GraphModel") {
    if (around == Around::kBoth) append("front", dense(kInput, kInput));
    append("graph", towers(ranks));
    if (around == Around::kNothing) return;
    append("head",
           std::make_shared<Dense>(9, kClasses, Dense::Activation::kNone, model::DenseCut::kNone));
  }
};

Problem problem(int ranks, Around around) {
  return {"graph", [=] { return std::make_shared<GraphModel>(ranks, around); },
          [=](std::int64_t rows) {
            return Batch{torch::randn({rows, kInput}), torch::randint(9, {rows})};
          }};
}

class GraphOverRanks : public testing::TestWithParam<Way> {};

TEST_P(GraphOverRanks, IsThePlanAndTrainsAsOneProcess) {
  for (const Around around : {Around::kNothing, Around::kHead, Around::kBoth}) {
    test::expect_run_of_one_process(GetParam(), problem(GetParam().strategy.tensor, around));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, GraphOverRanks,
    testing::Values(Way{"two", {2}, {.tensor = 2}}, Way{"two_hosts", {1, 1}, {.tensor = 2}},
                    Way{"three", {2, 1}, {.tensor = 3}, {.clip = true}},
                    Way{"four_micro_batches", {1, 1, 1, 1}, {.tensor = 4}, {.micro_batches = 2}},
                    Way{"recomputed", {3}, {.tensor = 3}, {.recompute = true}},
                    Way{"replicas", {2, 2}, {.tensor = 2}}),
    [](const auto& way) { return way.param.name; });

/// Trains on `ranks` threads to step `steps`; what rank 0 has then. Goes on from a checkpoint in
/// `folder`, if there is one.
std::vector<torch::Tensor> trained(int ranks, const std::string& folder, std::int64_t steps) {
  TrainerOptions options;
  options.steps = steps;
  options.global_batch = 12;
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.strategy.tensor = ranks;
  options.checkpoint.directory = folder;
  options.resume = std::filesystem::exists(folder);
  torch::manual_seed(2);
  const torch::Tensor x = torch::randn({96, kInput}, torch::kFloat64);
  const auto data = data::TensorDataset::create(x, x.argmax(1), torch::kFloat64).take_or_throw();
  std::vector<std::shared_ptr<GraphModel>> models;
  for (int r = 0; r < ranks; ++r) {
    torch::manual_seed(3);
    models.push_back(std::make_shared<GraphModel>(ranks, Around::kBoth));
    models.back()->to(torch::kFloat64);
  }
  auto group = comm::make_inproc_group(ranks).take_or_throw();
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < models.size(); ++r) {
    threads.emplace_back([&, r] {
      Task task;
      task.module = models[r];
      task.forward = [&, r](const torch::Tensor& in) { return models[r]->forward(in); };
      task.loss = model::cross_entropy;
      const Status done = Trainer(*group[r], task, data, {}, options).run().status();
      EXPECT_TRUE(done.ok()) << done.to_string();
    });
  }
  for (std::thread& t : threads) t.join();
  std::vector<torch::Tensor> out;
  for (const torch::Tensor& p : models[0]->parameters()) out.push_back(p.detach().clone());
  return out;
}

TEST(GraphCheckpoint, GoesOnWithOtherNumbersOfRanks) {
  const TemporaryFolder folder = TemporaryFolder::create("stormo_graph").take_or_throw();
  const std::vector<torch::Tensor> whole = trained(1, "", 20);
  for (const std::vector<int>& numbers : {std::vector{2, 3}, {3, 1}, {1, 4}, {4, 2}}) {
    const std::string run = folder.path() / std::to_string(numbers[0]);
    (void)trained(numbers[0], run, 10);
    const std::vector<torch::Tensor> resumed = trained(numbers[1], run, 20);
    ASSERT_EQ(resumed.size(), whole.size());
    for (std::size_t i = 0; i < whole.size(); ++i) {
      EXPECT_LT((resumed[i] - whole[i]).abs().max().item<double>(), 1e-10) << numbers[0];
    }
  }
}

TEST(Graph, RefusesWhatCannotBeDivided) {
  const auto why = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const Error& e) {
      return e.what();
    }
    return "nothing";
  };
  const auto has = [](const std::string& text, const char* part) {
    EXPECT_NE(text.find(part), std::string::npos) << text;
  };
  const std::shared_ptr<Graph> graph = towers(1);
  has(why([&] { graph->add("a1", dense(9, 3), {"all"}, {3}); }), "'a1' is no new name");
  has(why([&] { graph->add("input", dense(9, 3), {"all"}, {3}); }), "'input' is no new name");
  has(why([&] { graph->add("d", dense(9, 3), {"alle"}, {3}); }), "no segment 'alle'");
  has(why([&] { graph->add("d", dense(9, 3), {}, {3}); }), "'d' reads nothing");
  has(why([&] { graph->add("d", dense(9, 3), {"all"}, {0}); }), "not positive");
  has(why([&] { graph->divide({.ranks = 2, .owners = {0, 1}}); }), "2 owners are given for 8");
  graph->add("wrong", dense(9, 3), {"all"}, {4});
  has(why([&] {
        (void)graph->forward(torch::randn({2, kInput}));
      }),
      "the output of segment 'wrong' is of sizes [2, 3], not [2, 4]");

  struct Norm final : model::Segment {
    Norm() : Segment("Norm"), norm(register_module("norm", torch::nn::BatchNorm1d(3))) {}
    torch::Tensor forward(torch::Tensor x) override { return norm->forward(x); }
    torch::nn::BatchNorm1d norm;
  };
  Graph with_buffers(3);
  with_buffers.add("first", dense(3, 3), {"input"}, {3});
  with_buffers.add("norm", std::make_shared<Norm>(), {"first"}, {3});
  has(why([&] {
        with_buffers.divide({.ranks = 2, .owners = {0, 1}});
      }),
      "segment 'norm' has buffers");
}

// So what is behind a graph draws the same on all ranks, whatever their parts have drawn.
TEST(Graph, NumbersDrawnInsideAreNoneOutside) {
  struct Dropout final : model::Segment {
    Dropout() : Segment("Dropout") {}
    torch::Tensor forward(torch::Tensor x) override { return torch::dropout(x, 0.5, true); }
  };
  Graph graph(kInput);
  graph.add("left", dense(kInput, 8), {"input"}, {8});
  graph.add("dropped", std::make_shared<Dropout>(), {"left"}, {8});
  graph.add("right", dense(kInput, 8), {"input"}, {8});
  graph.add("join", dense(16, 9), {"dropped", "right"}, {9});
  graph.divide({.ranks = 2, .owners = {1, 1, 0, 0}});
  const tensor::TensorParallelGroup last = tensor::TensorParallelGroup::alone(2);
  graph.compute_with(&last);
  const auto next = [&](const std::vector<int>& owners) {
    graph.divide({.ranks = 2, .owners = owners});
    torch::manual_seed(4);
    (void)graph.forward(torch::randn({5, kInput}));
    return torch::rand({3});
  };
  EXPECT_TRUE(next({1, 1, 0, 0}).equal(next({1, 0, 0, 0})));  // it draws, or another rank does
}

}  // namespace
}  // namespace stormo::train
