// Norms of parameters of which ranks have parts, for LARS and LAMB: what they send, and which plans
// leave them out. That they train as one process: model_parallel_test.cc.
#include <gtest/gtest.h>

#include <cstdint>
#include <span>
#include <vector>

#include <torch/torch.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/step/layout.h>
#include <stormo/train/store/whole_norms.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train::trust_ratios {
namespace {

using test::PlanRun;
using Way = test::CutWay;
using Kind = OptimizerOptions::Kind;

constexpr int kSteps = 2;

PlanRun run_by(Way way, Kind kind) {
  way.optimizer = kind;
  const test::Problem problem = test::gpt_problem();
  return run_of(way, problem, problem.batches(kSteps, 8));
}

/// What each rank sends to other hosts in all steps, and in a barrier.
std::vector<std::int64_t> sent(const PlanRun& run) {
  std::vector<std::int64_t> out(static_cast<std::size_t>(run.ranks()));
  test::on_plan_ranks(run, [&](test::PlanRank& rank) {
    rank.steps(kSteps);
    throw_if_error(rank.groups.world().barrier());  // moves are sent by then
    out[static_cast<std::size_t>(rank.rank())] =
        static_cast<std::int64_t>(rank.groups.bytes_sent());
  });
  return out;
}

/// In all steps.
std::vector<std::int64_t> predicted(const PlanRun& run) {
  comm::CollectiveModel model({}, comm::Selection::defaults());
  const auto cost =
      analysis::cost(run.plan, run.hosts, step_sizes_of(run.options),
                     [&](const auto& hosts, const auto& c) { return model.traffic(hosts, c); })
          .take_or_throw();
  std::vector<std::int64_t> out;
  for (const auto& rank : cost.ranks) out.push_back(kSteps * rank.between_hosts);
  return out;
}

TEST(TrustRatios, SendWhatThePlanSays) {
  const std::vector<Way> ways = {
      {"", {1, 1}, {.tensor = 2}},
      {"", {1, 1, 1, 1}, {.tensor = 2}},
      {"", {1, 1, 1, 1}, {.pipeline = 2, .tensor = 2}, {.micro_batches = 2}},
      {"", {2, 2}, {.kind = Strategy::Kind::kFsdp, .tensor = 2}},
      {"", {1, 1, 1, 1}, {.tensor = 2, .context = 2}}};
  for (const Way& way : ways) {
    const PlanRun lamb = run_by(way, Kind::kLamb), adamw = run_by(way, Kind::kAdamW);
    const auto with = sent(lamb), without = sent(adamw);
    const auto more = predicted(lamb), less = predicted(adamw);
    std::int64_t all = 0;
    for (std::size_t r = 0; r < with.size(); ++r) {
      EXPECT_EQ(with[r] - without[r], more[r] - less[r]) << lamb.plan.strategy << " rank " << r;
      all += more[r] - less[r];
    }
    EXPECT_GT(all, 0) << lamb.plan.strategy;
  }
}

// The ratio of two norms does not tell whether both are counted several times; a rule with an
// epsilon would.
TEST(TrustRatios, CountEachElementOnce) {
  const PlanRun run =
      run_by({"",
              {8},
              {.kind = Strategy::Kind::kFsdp, .stage = 1, .pipeline = 2, .tensor = 2},
              {.micro_batches = 2}},
             Kind::kLamb);
  std::vector<std::vector<int>> counts(8);
  test::on_plan_ranks(run, [&](test::PlanRank& rank) {
    const WholeNorms norms = whole_norms(rank.groups, run.plan);
    for (const plan::ParameterShape* p : flatten(run.plan.model)) {
      counts[static_cast<std::size_t>(rank.rank())].push_back(norms.counts(p->name) ? 1 : 0);
    }
  });
  const auto parameters = flatten(run.plan.model);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    for (std::size_t pair = 0; pair < 8; pair += 2) {  // of ranks that compute layers together
      EXPECT_EQ(counts[pair][i], 1) << parameters[i]->name;
      EXPECT_EQ(counts[pair + 1][i], parameters[i]->split.units > 0 ? 1 : 0) << parameters[i]->name;
    }
  }
}

TEST(TrustRatios, AreOfRangesThatCount) {
  std::vector<NamedParameter> parameters;
  std::vector<OwnedRange> owned;
  for (const bool counts : {true, false, true}) {
    parameters.push_back({"p", torch::full({4}, 3.0, torch::kFloat64).requires_grad_()});
    parameters.back().tensor.mutable_grad() = torch::full({4}, 0.5, torch::kFloat64);
    owned.push_back({.end = 4, .counts = counts});
  }
  std::vector<std::vector<double>> summed;
  FusedOptimizer optimizer({.kind = Kind::kLars}, parameters, owned, [&](std::span<double> sums) {
    summed.emplace_back(sums.begin(), sums.end());
    return Status();
  });
  throw_if_error(optimizer.step({.lr = 0.1}, 0, 2));
  throw_if_error(optimizer.gradient_norm().status());
  EXPECT_EQ(summed, (std::vector<std::vector<double>>{{36, 1, 0, 0}, {2}}));
}

TEST(TrustRatios, AStoreRefusesAPlanThatLeavesThemOut) {
  for (const Strategy& strategy :
       {Strategy{.tensor = 2}, {.kind = Strategy::Kind::kFsdp, .tensor = 2}}) {
    PlanRun run = run_by({"", {4}, strategy}, Kind::kLars);
    test::on_plan_ranks(run, [&](test::PlanRank& rank) {
      EXPECT_TRUE(check_layout(run.plan, rank.store()).ok());
      plan::StepPlan without = run.plan;
      for (plan::Action& a : without.actions) {
        if (a.kind == plan::ActionKind::kUpdate) a.axes.clear();
      }
      const Status refused = check_layout(without, rank.store());
      EXPECT_EQ(refused.code(), Code::kBadPlan);
      EXPECT_NE(refused.message().find("apply trust_ratios()"), std::string::npos)
          << refused.message();
    });
  }
}

}  // namespace
}  // namespace stormo::train::trust_ratios
