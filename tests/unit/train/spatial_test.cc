// Images whose places ranks share: ranks do what the plan says and send what it predicts, and train
// as one process does; and locally connected layers, whose units they share. That layers and models
// compute the same on a grid is tested in tests/unit/model/places_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <torch/torch.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/model/locally_connected.h>
#include <stormo/model/resnet20.h>
#include <stormo/plan/project.h>

#include "tests/unit/train/cut_model.h"

namespace stormo::train {
namespace {

using test::Batch;
using test::PlanRun;
using test::Problem;
using Way = test::CutWay;

Problem resnet_problem(std::int64_t height, std::int64_t width) {
  return {"resnet20",
          [=] {
            return std::make_shared<model::ResNet20>(
                model::ResNet20Options{.channels = 2, .height = height, .width = width});
          },
          [=](std::int64_t rows) {
            return Batch{torch::randn({rows, 2, height, width}), torch::randint(10, {rows})};
          }};
}

Problem local_problem() {
  return {"local",
          [] {
            return std::make_shared<model::LocalNet>(
                model::LocalNetOptions{.channels = 2, .height = 32, .width = 20});
          },
          [](std::int64_t rows) {
            return Batch{torch::randn({rows, 2, 32, 20}), torch::randint(10, {rows})};
          }};
}

PlanRun spatial_run(const Way& way, const Problem& problem, const std::vector<Batch>& batches) {
  PlanRun run = test::run_of(way, problem, batches);
  // Adam divides by its estimate of small gradients, so rounding would grow
  run.options.optimizer = {.kind = OptimizerOptions::Kind::kSgd, .lr = 0.01, .momentum = 0.9};
  return run;
}

/// Ranks do the plan and send what it predicts, and 20 steps are those of one process.
void expect_run_of_one_process(const Way& way, const Problem& problem) {
  constexpr int kSteps = 20, kRows = 4;
  const std::vector<Batch> batches = problem.batches(kSteps, kRows);
  const PlanRun all = spatial_run(way, problem, batches);
  const std::vector<test::PlanResult> runs = test::train_by_plan(all);
  Way one = way;
  one.hosts = {1};
  one.strategy = {};
  const auto reference = test::train_by_plan(spatial_run(one, problem, batches));
  analysis::StepSizes sizes;
  sizes.samples = kRows / data_part(all.plan.mesh, 0).parts / way.step.micro_batches;
  comm::CollectiveModel model({}, comm::Selection::defaults());
  const auto cost =
      analysis::cost(all.plan, way.hosts, sizes, [&](const auto& hosts, const auto& c) {
        return model.traffic(hosts, c);
      }).take_or_throw();
  EXPECT_EQ(cost.total().between_hosts > 0, way.hosts.size() > 1);
  std::vector<double> losses(kSteps);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    test::expect_trace(runs[r].trace, project(all.plan, static_cast<Rank>(r)), kSteps);
    test::expect_near(runs[r].values, reference[0].values, 1e-10, problem.name);
    EXPECT_EQ(runs[r].sent[1], static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
        << problem.name << ", rank " << r;
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += runs[r].losses[i];
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference[0].losses[i], 1e-10) << problem.name << " step " << i;
  }
}

class Spatial : public testing::TestWithParam<Way> {};

TEST_P(Spatial, IsThePlanAndTrainsAsOneProcess) {
  for (const Problem& problem :
       {test::cnn_problem(), resnet_problem(16, 16), resnet_problem(18, 20)}) {
    const bool has_replicas = GetParam().name.starts_with("replicas");
    // each replica normalises by statistics of its own
    if (has_replicas && problem.name == "resnet20") continue;
    expect_run_of_one_process(GetParam(), problem);
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, Spatial,
    testing::Values(
        Way{"one_by_two", {2}, {.spatial = {1, 2}}},
        Way{"two_by_one_on_hosts", {1, 1}, {.spatial = {2, 1}}},
        Way{"two_by_two", {1, 1, 1, 1}, {.spatial = {2, 2}}, {.clip = true}},
        Way{"one_by_four", {1, 3}, {.spatial = {1, 4}}},
        Way{"replicas_on_hosts", {2, 2}, {.spatial = {1, 2}}},
        Way{"micro_batches", {2}, {.spatial = {2, 1}}, {.micro_batches = 2, .clip = true}}),
    [](const auto& way) { return way.param.name; });

TEST(LocalConnectivity, IsThePlanAndTrainsAsOneProcess) {
  for (const Way& way : {Way{"two", {1, 1}, {.tensor = 2}},
                         Way{"four", {1, 1, 1, 1}, {.tensor = 4}, {.micro_batches = 2}},
                         Way{"replicas", {2, 2}, {.tensor = 2}, {.clip = true}}}) {
    expect_run_of_one_process(way, local_problem());
  }
}

}  // namespace
}  // namespace stormo::train
