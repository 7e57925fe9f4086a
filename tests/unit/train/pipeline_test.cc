// Pipelines that run: ranks do what the plan says of their stage, and train as one process does.
#include <gtest/gtest.h>

#include <ostream>
#include <string>
#include <vector>

#include <stormo/parallel/strategy.h>
#include <stormo/plan/project.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::train {
namespace {

using parallel::StepOptions;
using test::Batch;
using test::PlanRun;
using test::Problem;

struct Way {
  std::string name;
  std::vector<int> hosts;  // ranks of each
  Strategy strategy;
  StepOptions step = {};
};
std::ostream& operator<<(std::ostream& out, const Way& way) { return out << way.name; }

PlanRun run_of(const Way& way, const Problem& problem, const std::vector<Batch>& batches) {
  TrainerOptions options;
  options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01};
  options.clip_norm = way.step.clip ? 0.5 : 0;
  return {.plan = parallel::plan_for(way.strategy, problem.model(3)->shape(),
                                     {.ranks_per_host = way.hosts}, way.step)
                      .take_or_throw(),
          .hosts = way.hosts,
          .problem = problem,
          .batches = batches,
          .options = options};
}

class PipelineTrace : public testing::TestWithParam<Way> {};

TEST_P(PipelineTrace, IsThePlanAndTrainsAsOneProcess) {
  const Way& way = GetParam();
  const auto parts = static_cast<std::size_t>(way.strategy.pipeline * way.strategy.chunks);
  for (const Problem& problem : {test::gpt_problem(), test::mlp_problem(), test::cnn_problem(),
                                 test::with_frozen_segment(test::mlp_problem(), 0)}) {
    const bool is_small = problem.model(3)->segments().size() < parts;
    if (is_small && problem.name != "gpt") continue;
    // 13 rows; of 3 rows some micro-batches, and with replicas some ranks, have none
    std::vector<Batch> batches = problem.batches(3, 13);
    batches.push_back(batches[0].rows(0, 3));
    const PlanRun all = run_of(way, problem, batches);
    const std::vector<test::PlanResult> runs = test::train_by_plan(all);
    Way one = way;
    one.hosts = {1};
    one.strategy = {};
    const auto reference = test::train_by_plan(run_of(one, problem, batches));
    std::vector<double> losses(batches.size());
    for (std::size_t r = 0; r < runs.size(); ++r) {
      test::expect_trace(runs[r].trace, project(all.plan, static_cast<Rank>(r)), batches.size());
      test::expect_near(runs[r].values, reference[0].values, 1e-10, problem.name);
      for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += runs[r].losses[i];
    }
    for (std::size_t i = 0; i < losses.size(); ++i) {
      EXPECT_NEAR(losses[i], reference[0].losses[i], 1e-9) << problem.name << " step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Ways, PipelineTrace,
    testing::Values(
        Way{"gpipe", {2}, {.pipeline = 2, .schedule = "gpipe"}, {.micro_batches = 4}},
        Way{"one_f_one_b", {2}, {.pipeline = 2}, {.micro_batches = 4}},
        Way{"eager", {1, 1}, {.pipeline = 2, .schedule = "eager_1f1b"}, {.micro_batches = 4}},
        Way{"three_stages", {3}, {.pipeline = 3}, {.micro_batches = 5}},
        Way{"clipped", {2}, {.pipeline = 2}, {.micro_batches = 2, .clip = true}},
        Way{"recomputed", {2}, {.pipeline = 2}, {.micro_batches = 4, .recompute = true}},
        Way{"two_hosts", {1, 1}, {.pipeline = 2}, {.micro_batches = 4, .clip = true}},
        Way{"interleaved",
            {2},
            {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
            {.micro_batches = 4, .clip = true}},
        Way{"interleaved_on_hosts",
            {1, 1},
            {.pipeline = 2, .schedule = "interleaved", .chunks = 2},
            {.micro_batches = 6, .recompute = true}},
        Way{"replicas", {4}, {.pipeline = 2}, {.micro_batches = 2, .clip = true}},
        Way{"replicas_on_hosts", {2, 2}, {.pipeline = 2}, {.micro_batches = 3}}),
    [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace stormo::train
