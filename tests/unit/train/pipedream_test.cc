// Pipelines whose steps overlap: ranks do what the plan says, and train as the definition of the
// algorithm says, computed by one process: each stage computes a batch with parameters that lack
// the updates of some batches before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <stormo/plan/project.h>

#include "tests/unit/train/cut_model.h"
#include "tests/unit/train/late_updates.h"

namespace stormo::train::pipedream {
namespace {

using parallel::StepOptions;
using plan::Action;
using plan::ActionKind;
using test::Batch;
using test::expected_trace;
using test::meets;
using test::PlanRank;
using test::PlanRun;
using test::Problem;

using Way = test::CutWay;

std::vector<std::string> text_of(const std::vector<Action>& actions) {
  std::vector<std::string> out;
  for (const Action& a : actions) out.push_back(to_text(a));
  return out;
}

/// By parameter of the model: how many batches its updates are behind those that are computed.
std::vector<int> delays(const Way& way, const plan::StepPlan& p) {
  std::vector<int> out;
  for (const plan::SegmentShape& s : p.model.segments) {
    const int behind = way.strategy.pipeline - 1 - s.stage, m = way.step.micro_batches;
    const int delay = way.strategy.schedule == "pipedream_2bw" ? 1 : (behind + m - 1) / m;
    out.insert(out.end(), s.parameters.size(), delay);
  }
  return out;
}

class PipeDreamTrace : public testing::TestWithParam<Way> {};

TEST_P(PipeDreamTrace, IsThePlanAndTrainsWithTheVersionsOfTheDefinition) {
  const Way& way = GetParam();
  const int heads = std::max(2, way.strategy.tensor * way.strategy.context);
  const int positions = std::max(8, 4 * way.strategy.context);
  std::vector<Problem> problems = {test::gpt_problem(way.tied, heads, positions)};
  if (way.strategy.context == 1 && !way.strategy.sequence_parallel) {
    problems.push_back(test::mlp_problem());
    problems.push_back(test::cnn_problem());
    problems.push_back(test::with_frozen_segment(test::mlp_problem(), 0));
  }
  for (const Problem& problem : problems) {
    const bool is_small =
        std::ssize(problem.model(3)->segments()) < std::int64_t{way.strategy.pipeline};
    if (is_small && problem.name != "gpt") continue;
    std::vector<Batch> batches = problem.batches(10, 13);
    batches[5] = batches[5].rows(0, 3);  // some micro-batches, and with replicas ranks, have none
    const PlanRun run = run_of(way, problem, batches);
    const test::Oracle oracle = test::train_with_delays(run, delays(way, run.plan));
    std::vector<std::vector<Action>> traces(static_cast<std::size_t>(run.ranks()));
    std::vector<std::vector<double>> losses(traces.size());
    std::vector<test::Values> values(traces.size());
    test::on_plan_ranks(run, [&](PlanRank& rank) {
      const auto r = static_cast<std::size_t>(rank.rank());
      for (std::size_t step = 0; step < batches.size(); ++step) {
        rank.at = {.number = static_cast<std::int64_t>(step) + 1,
                   .closes = meets(step, batches.size())};
        losses[r].push_back(rank.try_step().take_or_throw().loss_sum);
      }
      values[r] = rank.values();
      traces[r] = rank.trace;
    });
    for (std::size_t r = 0; r < traces.size(); ++r) {
      const auto mine = project(run.plan, static_cast<Rank>(r));
      EXPECT_EQ(text_of(traces[r]), text_of(expected_trace(mine, batches.size())))
          << problem.name << " rank " << r;
      test::expect_near(values[r], oracle.values, 1e-10, problem.name);
    }
    for (std::size_t step = 0; step < batches.size(); ++step) {
      double sum = 0;
      for (const auto& of_rank : losses) sum += of_rank[step];
      EXPECT_NEAR(sum, oracle.losses[step], 1e-9) << problem.name << " step " << step;
    }
  }
}

Strategy stages(int n, const std::string& schedule) {
  return {.period = 100, .pipeline = n, .schedule = schedule};
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PipeDreamTrace,
    testing::Values(
        Way{"pipedream", {2}, stages(2, "pipedream"), {.micro_batches = 4}},
        Way{"tied", {2}, stages(2, "pipedream"), {.micro_batches = 1}, true},
        Way{"a_batch_per_stage", {3}, stages(3, "pipedream"), {.micro_batches = 1}},
        Way{"four_stages", {4}, stages(4, "pipedream"), {.micro_batches = 2}},
        Way{"on_hosts", {1, 2}, stages(3, "pipedream"), {.micro_batches = 2}, true},
        Way{"recomputed", {2}, stages(2, "pipedream"), {.micro_batches = 2, .recompute = true}},
        Way{"delayed_gradients", {2}, stages(2, "ddg")},
        Way{"delayed_gradients_of_three", {3}, stages(3, "ddg"), {.recompute = true}},
        Way{"delayed_gradients_of_four", {1, 3}, stages(4, "ddg")},
        Way{"two_versions", {2}, stages(2, "pipedream_2bw"), {.micro_batches = 4}},
        Way{"two_versions_tied", {3}, stages(3, "pipedream_2bw"), {.micro_batches = 3}, true},
        Way{"two_versions_on_hosts",
            {2, 1},
            stages(3, "pipedream_2bw"),
            {.micro_batches = 5, .recompute = true}},
        Way{"replicas", {4}, stages(2, "pipedream"), {.micro_batches = 3}, true},
        Way{"replicas_on_hosts", {2, 2}, stages(2, "pipedream_2bw"), {.micro_batches = 2}},
        Way{"tensor",
            {4},
            {.period = 100, .pipeline = 2, .tensor = 2, .schedule = "pipedream_2bw"},
            {.micro_batches = 2}},
        Way{"sequence",
            {4},
            {.period = 100,
             .pipeline = 2,
             .tensor = 2,
             .sequence_parallel = true,
             .schedule = "pipedream"},
            {.micro_batches = 2},
            true},
        Way{"norms_of_slices",
            {8},
            {.period = 100, .pipeline = 2, .tensor = 2, .schedule = "pipedream"},
            {.micro_batches = 2},
            true,
            OptimizerOptions::Kind::kLamb},
        Way{"context",
            {2, 2},
            {.period = 100, .pipeline = 2, .context = 2, .schedule = "pipedream"},
            {.micro_batches = 2},
            true}),
    [](const auto& way) { return way.param.name; });

/// Versions that computations of one kind used, in order.
struct UsedVersions final : Sink {
  std::map<std::string, std::vector<std::int64_t>, std::less<>> by_name;
  void record(const Event& event) override {
    by_name[std::string(event.name)].push_back(event.weights);
  }
};

// Stage s of p computes batch b when it has had b - (p-1-s) updates.
TEST(PipeDream, TracesTellWhichVersionAComputationUsed) {
  constexpr int kStages = 3, kSteps = 6;
  const Problem problem = test::mlp_problem();
  const PlanRun run = run_of({"versions", {kStages}, stages(kStages, "pipedream")}, problem,
                             problem.batches(kSteps, 13));
  std::vector<UsedVersions> used(kStages);
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    UsedVersions& mine = used[static_cast<std::size_t>(rank.rank())];
    rank.pass_events_to(&mine);
    for (int step = 0; step < kSteps; ++step) {
      rank.at = {.number = step + 1, .closes = step + 1 == kSteps};
      rank.try_step().take_or_throw();
    }
    rank.pass_events_to(nullptr);
  });
  for (int s = 0; s < kStages; ++s) {
    std::vector<std::int64_t> versions;
    for (int b = 0; b < kSteps; ++b) versions.push_back(std::max(0, b - (kStages - 1 - s)));
    auto& mine = used[static_cast<std::size_t>(s)].by_name;
    EXPECT_EQ(mine["forward"], versions) << "stage " << s;
    EXPECT_EQ(mine["backward"], versions) << "stage " << s;
    EXPECT_EQ(mine["update"], std::vector<std::int64_t>(kSteps, -1));
  }
}

/// An MLP whose layers are stages, without weight stashing, by formulas: a layer multiplies what is
/// late with its newest weight, and its own gradient is of the input that it had.
class NewestWeights {
 public:
  NewestWeights(const model::Chain& chain, double lr, double momentum)
      : lr_(lr), momentum_(momentum) {
    const auto all = chain.parameters();
    for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
      layers_.push_back({.w = all[i], .b = all[i + 1]});
    }
  }

  /// The mean loss of `batch`; null: there is none, others are finished.
  double step(const Batch* batch) {
    double loss = 0;
    if (batch != nullptr) loss = forward(*batch);
    const std::size_t n = layers_.size();
    std::vector<torch::Tensor> next(n);  // gradients for the step that comes
    for (std::size_t i = n; i-- > 0;) {
      Layer& l = layers_[i];
      torch::Tensor g = i + 1 < n ? l.arrived : at_output_;
      if (!g.defined()) continue;
      const auto [x, y] = l.under_way.front();
      l.under_way.pop_front();
      if (i + 1 < n) g = g * (y > 0);
      if (i > 0) next[i - 1] = g.matmul(l.w);
      update(l.w, l.of_w, g.t().matmul(x));
      update(l.b, l.of_b, g.sum(0));
    }
    for (std::size_t i = 0; i + 1 < n; ++i) layers_[i].arrived = next[i];
    at_output_ = torch::Tensor();
    return loss;
  }

 private:
  struct Layer {
    torch::Tensor w, b;
    torch::Tensor of_w = {}, of_b = {};                                  // momentum
    torch::Tensor arrived = {};                                          // gradient of its output
    std::deque<std::pair<torch::Tensor, torch::Tensor>> under_way = {};  // input and output
  };
  double forward(const Batch& batch) {
    torch::Tensor x = batch.x;
    for (std::size_t i = 0; i < layers_.size(); ++i) {
      Layer& l = layers_[i];
      torch::Tensor y = x.matmul(l.w.t()) + l.b;
      if (i + 1 < layers_.size()) y = y.clamp_min(0);
      l.under_way.emplace_back(x, y);
      x = y;
    }
    const auto rows = static_cast<double>(x.size(0));
    const torch::Tensor share = x.softmax(1);
    const torch::Tensor hot = torch::one_hot(batch.target, x.size(1));
    at_output_ = (share - hot) / rows;
    return -(share.log() * hot).sum().item<double>() / rows;
  }
  void update(torch::Tensor& value, torch::Tensor& velocity, const torch::Tensor& gradient) const {
    velocity = velocity.defined() ? momentum_ * velocity + gradient : gradient;
    value -= lr_ * velocity;
  }
  double lr_, momentum_;
  std::vector<Layer> layers_;
  torch::Tensor at_output_;
};

TEST(DelayedGradients, WithoutStashedWeightsThereIsNoAutocast) {
  const Problem problem = test::mlp_problem();
  Strategy strategy = stages(2, "ddg");
  strategy.weight_stashing = false;
  const PlanRun run = run_of({"newest_weights", {2}, strategy}, problem, problem.batches(1, 4));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.task.autocast = torch::kBFloat16;
    const Status status = rank.start(run.plan);
    EXPECT_NE(status.message().find("16-bit copies of the weights"), std::string::npos);
  });
}

// 50 steps, with the momentum of each stage; all batches are finished after the last one.
TEST(DelayedGradients, WithoutStashedWeightsBackwardsUseTheNewestOnes) {
  for (const int n : {2, 3, 4}) {
    Problem problem = test::mlp_problem();
    problem.build = [n] {
      std::vector<std::int64_t> sizes = {20, 33, 17, 11};
      sizes.resize(static_cast<std::size_t>(n));
      sizes.push_back(5);
      return std::make_shared<model::Mlp>(sizes);
    };
    Strategy strategy = stages(n, "ddg");
    strategy.weight_stashing = false;
    PlanRun run = run_of({"newest_weights", {n}, strategy}, problem, problem.batches(50, 13));
    EXPECT_TRUE(run.plan.newest_weights);
    run.options.optimizer = {.kind = OptimizerOptions::Kind::kSgd, .lr = 0.05, .momentum = 0.9};
    const torch::NoGradGuard no_grad;
    const auto alone = problem.model(3);
    NewestWeights oracle(*alone, 0.05, 0.9);
    std::vector<double> expected;
    for (const Batch& batch : run.batches) expected.push_back(oracle.step(&batch));
    for (int i = 1; i < n; ++i) oracle.step(nullptr);
    std::vector<test::Values> values(static_cast<std::size_t>(n));
    test::on_plan_ranks(run, [&](PlanRank& rank) {
      const bool has_loss = rank.rank() == n - 1;
      for (std::size_t step = 0; step < run.batches.size(); ++step) {
        rank.at = {.number = static_cast<std::int64_t>(step) + 1,
                   .closes = step + 1 == run.batches.size()};
        const double sum = rank.try_step().take_or_throw().loss_sum;
        if (has_loss) {
          EXPECT_NEAR(sum / 13, expected[step], 1e-10) << n << " step " << step;
        }
      }
      values[static_cast<std::size_t>(rank.rank())] = rank.values();
    });
    for (const test::Values& of_rank : values) {
      test::expect_near(of_rank, test::values_of(*alone), 1e-10, std::to_string(n) + " stages");
    }
  }
}

}  // namespace
}  // namespace stormo::train::pipedream
