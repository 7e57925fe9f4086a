#pragma once

#include <algorithm>
#include <functional>
#include <limits>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <gtest/gtest.h>
#include <torch/torch.h>

#include <stormo/model/chain.h>
#include <stormo/model/cnn.h>
#include <stormo/model/gpt.h>
#include <stormo/model/loss.h>
#include <stormo/model/mlp.h>
#include <stormo/model/text_classifier.h>
#include <stormo/train/sharding/fully_sharded_data_parallel.h>

#include "tests/unit/comm/ranks.h"
#include "tests/unit/train/module_values.h"
#include "tests/unit/train/seeded.h"

// Training a small chain on ranks that are threads, and alone on the union of their batches.
namespace stormo::test {

using Group = std::vector<std::unique_ptr<comm::Communicator>>;

/// Runs `body` on every rank of the group, each in a thread. What one throws fails the test, and
/// the group, so that the others end.
inline void on_ranks(Group& group, const std::function<void(comm::Communicator&)>& body) {
  std::vector<std::thread> threads;
  for (auto& communicator : group) {
    threads.emplace_back([&body, c = communicator.get()] {
      try {
        body(*c);
      } catch (const std::exception& e) {
        ADD_FAILURE() << "rank " << c->rank() << ": " << e.what();
        c->fail(Status(Code::kException, e.what()));
      }
    });
  }
  for (std::thread& t : threads) t.join();
}

inline void on_ranks(int n, const std::function<void(comm::Communicator&)>& body) {
  Group group = comm::make_hosts({n});
  on_ranks(group, body);
}

struct Batch {
  torch::Tensor x, target;
  Batch rows(std::int64_t first, std::int64_t count) const {
    return {x.narrow(0, first, count), target.narrow(0, first, count)};
  }
};

/// A model and the batches of a run. Both depend on their arguments alone, in any thread.
struct Problem {
  std::string name;
  std::function<std::shared_ptr<model::Chain>()> build;
  std::function<Batch(std::int64_t rows)> draw;
  torch::ScalarType type = torch::kFloat64;

  std::shared_ptr<model::Chain> model(std::uint64_t seed) const {
    const Seeded seeded(seed);
    auto chain = build();
    chain->to(type);
    return chain;
  }
  std::vector<Batch> batches(int steps, std::int64_t rows) const {
    const Seeded seeded(7);
    std::vector<Batch> out;
    for (int i = 0; i < steps; ++i) {
      out.push_back(draw(rows));
      if (out.back().x.is_floating_point()) out.back().x = out.back().x.to(type);
    }
    return out;
  }
};

inline Problem mlp_problem() {
  return {"mlp",
          [] {
            return std::make_shared<model::Mlp>(std::vector<std::int64_t>{20, 33, 17, 5});
          },
          [](std::int64_t rows) {
            return Batch{torch::randn({rows, 20}), torch::randint(5, {rows})};
          }};
}
inline Problem cnn_problem() {
  return {"cnn",
          [] {
            return std::make_shared<model::Cnn>(model::CnnOptions{3, 5, 12, 10});
          },
          [](std::int64_t rows) {
            return Batch{torch::randn({rows, 1, 28, 28}), torch::randint(10, {rows})};
          }};
}
inline Problem gpt_problem(bool tied = true, int heads = 2, int positions = 8) {
  return {
      tied ? "gpt" : "gpt, not tied",
      [=] {
        return std::make_shared<model::Gpt>(model::GptOptions{.vocabulary = 19,
                                                              .context = positions,
                                                              .layers = 2,
                                                              .heads = heads,
                                                              .width = 12,
                                                              .tied = tied});
      },
      [=](std::int64_t rows) {
        return Batch{torch::randint(19, {rows, positions}), torch::randint(19, {rows, positions})};
      }};
}

/// Texts of up to 8 words, the first of which is one.
inline Problem text_problem() {
  return {
      "text classifier",
      [] {
        return std::make_shared<model::TextClassifier>(model::TextClassifierOptions{
            .vocabulary = 19, .classes = 3, .width = 12, .layers = 2, .heads = 2, .context = 8});
      },
      [](std::int64_t rows) {
        torch::Tensor x = torch::randint(19, {rows, 8});
        x.select(1, 0).clamp_(1);
        return Batch{x, torch::randint(3, {rows})};
      }};
}

/// The problem with a segment that is not trained.
inline Problem with_frozen_segment(Problem problem, std::size_t segment) {
  problem.build = [build = problem.build, segment] {
    auto chain = build();
    for (const torch::Tensor& p : chain->segments()[segment]->parameters()) {
      p.set_requires_grad(false);
    }
    return chain;
  };
  return problem;
}

struct Outcome {
  std::vector<double> losses;
  Values parameters;
};

/// Largest difference over losses (relative) and parameters.
inline double difference(const Outcome& a, const Outcome& b) {
  double worst = a.losses.size() == b.losses.size() && a.parameters.size() == b.parameters.size()
                     ? 0
                     : std::numeric_limits<double>::infinity();
  for (std::size_t i = 0; i < std::min(a.losses.size(), b.losses.size()); ++i) {
    worst = std::max(worst, std::abs(a.losses[i] - b.losses[i]) / std::abs(b.losses[i]));
  }
  for (const auto& [name, value] : a.parameters) {
    worst = std::max(worst, (value - b.parameters.at(name)).abs().max().item<double>());
  }
  return worst;
}

}  // namespace stormo::test
