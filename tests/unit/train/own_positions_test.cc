// Segments of one's own that compute some positions of each sample: the numbers of these positions
// come from Segment::positions().
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include <torch/torch.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train::own_positions {
namespace {

using test::Batch;
using test::Problem;

constexpr std::int64_t kWords = 19, kPositions = 8, kWidth = 6;

/// Vectors of words and of positions.
class Vectors final : public model::Segment {
 public:
  explicit Vectors(bool asks)
      : Segment("Vectors"),
        asks_(asks),
        word_(register_parameter("word", torch::randn({kWords, kWidth}))),
        position_(register_parameter("position", torch::randn({kPositions, kWidth}))) {}
  torch::Tensor forward(torch::Tensor x) override {
    const std::int64_t here = x.size(1);
    const torch::Tensor numbers = asks_ ? positions(here) : torch::Tensor();
    const torch::Tensor rows =
        numbers.defined() ? position_.index_select(0, numbers) : position_.slice(0, 0, here);
    return at::embedding(word_, x) + rows;
  }
  model::ContextForm context_form() const override { return {.positions = kPositions}; }

 private:
  bool asks_;  // for the numbers of positions
  torch::Tensor word_, position_;
};

class Output final : public model::Segment {
 public:
  Output() : Segment("Output"), linear_(register_module("linear", torch::nn::Linear(kWidth, 5))) {}
  torch::Tensor forward(torch::Tensor x) override { return linear_(torch::tanh(x)); }
  model::ContextForm context_form() const override { return {.positions = kPositions}; }

 private:
  torch::nn::Linear linear_;
};

struct Net final : model::Chain {
  explicit Net(bool asks) : Chain("Net") {
    append("vectors", std::make_shared<Vectors>(asks));
    append("output", std::make_shared<Output>());
  }
};

/// The losses of steps by `strategy` on `ranks`, over all samples.
std::vector<double> losses(bool asks, int ranks, const parallel::Strategy& strategy) {
  const Problem problem{"own segments", [asks] { return std::make_shared<Net>(asks); },
                        [](std::int64_t rows) {
                          return Batch{torch::randint(kWords, {rows, kPositions}),
                                       torch::randint(5, {rows, kPositions})};
                        }};
  const auto runs = test::train_by_plan(
      run_of({"", {ranks}, strategy, {.micro_batches = 2}}, problem, problem.batches(3, 6)));
  std::vector<double> out(3);
  for (const test::PlanResult& run : runs) {
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += run.losses[i];
  }
  return out;
}

TEST(OwnPositions, ASegmentThatAsksForTheirNumbersTrainsAsOneProcess) {
  const std::vector<double> one = losses(true, 1, {});
  for (const auto& [ranks, strategy] : {std::pair(2, parallel::Strategy{.context = 2}),
                                        {4, {.context = 4}},
                                        {4, {.pipeline = 2, .context = 2}}}) {
    const std::vector<double> cut = losses(true, ranks, strategy);
    for (std::size_t i = 0; i < one.size(); ++i) EXPECT_NEAR(cut[i], one[i], 1e-10);
  }
}

// What docs/guides/make-a-layer-tensor-parallel.md says of this mistake.
TEST(OwnPositions, CountingThemFromTheInputIsNoErrorAndAnotherModel) {
  const double one = losses(false, 1, {})[0];
  EXPECT_EQ(losses(true, 1, {})[0], one);
  EXPECT_GT(std::abs(losses(false, 2, {.context = 2})[0] - one), 0.01 * one);
}

}  // namespace
}  // namespace stormo::train::own_positions
