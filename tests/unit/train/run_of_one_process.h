#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <vector>

#include <stormo/plan/project.h>

#include "tests/unit/train/cut_model.h"
#include "tests/unit/train/predicted_cost.h"

namespace stormo::test {

inline PlanRun sgd_run(const CutWay& way, const Problem& problem,
                       const std::vector<Batch>& batches) {
  PlanRun run = run_of(way, problem, batches);
  // Adam divides by its estimate of small gradients, so rounding would grow
  run.options.optimizer = {
      .kind = train::OptimizerOptions::Kind::kSgd, .lr = 0.01, .momentum = 0.9};
  return run;
}

/// Bytes of what each segment makes of a micro-batch.
inline std::vector<std::int64_t> output_bytes(const Problem& problem, std::int64_t samples) {
  const torch::NoGradGuard no_grad;
  std::vector<std::int64_t> out;
  torch::Tensor x = problem.batches(1, samples)[0].x;
  const auto chain = problem.model(3);
  for (const auto& segment : chain->segments()) {
    x = segment->forward(x);
    out.push_back(static_cast<std::int64_t>(x.nbytes()));
  }
  return out;
}

/// Ranks do the plan, 20 steps are those of one process, and the last of them sends what the plan
/// predicts: the first ones also send shapes. `rows`: of a batch, which all micro-batches of all
/// replicas share equally.
inline void expect_run_of_one_process(const CutWay& way, const Problem& problem, int rows = 4) {
  constexpr int kSteps = 20;
  const std::vector<Batch> batches = problem.batches(kSteps, rows);
  const PlanRun all = sgd_run(way, problem, batches);
  const std::vector<PlanResult> runs = train_by_plan(all);
  CutWay one = way;
  one.hosts = {1};
  one.strategy = {};
  const auto reference = train_by_plan(sgd_run(one, problem, batches));
  analysis::StepSizes sizes{.averaged_slots = 1};  // of a momentum
  sizes.samples = rows / data_part(all.plan.mesh, 0).parts / way.step.micro_batches;
  sizes.outputs = output_bytes(problem, sizes.samples);
  const analysis::StepCost cost = predicted_cost(all, sizes);
  EXPECT_EQ(cost.total().between_hosts > 0, way.hosts.size() > 1);
  std::vector<double> losses(kSteps);
  for (std::size_t r = 0; r < runs.size(); ++r) {
    expect_trace(runs[r].trace, project(all.plan, static_cast<Rank>(r)), kSteps);
    expect_near(runs[r].values, reference[0].values, 1e-10, problem.name);
    EXPECT_EQ(runs[r].sent.back(), static_cast<std::uint64_t>(cost.ranks[r].between_hosts))
        << problem.name << ", rank " << r;
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += runs[r].losses[i];
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference[0].losses[i], 1e-10) << problem.name << " step " << i;
  }
}

}  // namespace stormo::test
