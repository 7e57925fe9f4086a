#pragma once

#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/plan/step_plan.h>

#include "tests/unit/train/plan_run.h"

// Plans written by hand, in the text form.
namespace stormo::test {

/// The text form of mlp_problem().
inline constexpr const char* kMlp = R"(
segment 0: layer0 flops=1320
  parameter 0: layer0.linear.weight elements=660 type=float64
  parameter 1: layer0.linear.bias elements=33 type=float64
segment 1: layer1 flops=1122
  parameter 2: layer1.linear.weight elements=561 type=float64
  parameter 3: layer1.linear.bias elements=17 type=float64
segment 2: layer2 flops=170
  parameter 4: layer2.linear.weight elements=85 type=float64
  parameter 5: layer2.linear.bias elements=5 type=float64
)";

/// Where values lie between steps, of parameters and of the optimizer's state.
struct AtRest {
  std::string parameters, frozen, state;
};
inline const AtRest kReplicas = {"replicate", "replicate", "replicate"};
inline const AtRest kOneCopy = {"shared", "replicate", "shard"};
inline const AtRest kShards = {"shard", "replicate", "shard"};

/// A plan of the mlp; actions one on a line, without their numbers.
inline plan::StepPlan written(const std::string& mesh, const std::string& actions,
                              const std::string& step = "micro_batches=1",
                              const AtRest& rest = kReplicas, const std::string& model = kMlp) {
  std::string text = "step_plan v2 by_hand\nmesh " + mesh + "\nstep " + step + model +
                     "state parameters " + rest.parameters + "\nstate frozen " + rest.frozen +
                     "\nstate optimizer " + rest.state + "\n";
  std::istringstream lines(actions);
  int number = 0;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) text += "action " + std::to_string(number++) + ": " + line + "\n";
  }
  auto plan = plan::parse_step_plan(text);
  EXPECT_TRUE(plan.ok()) << plan.status().message() << "\n" << text;
  return plan.ok() ? *plan : plan::StepPlan{};
}

/// As mirrored() makes it.
inline plan::StepPlan plain(int ranks) {
  const std::string replicas = "all_reduce 0-5 over dp\n";
  return written("dp=" + std::to_string(ranks),
                 "load\nforward 0-2\nloss\nbackward 0-2\n" + replicas + "update 0-5\nagree");
}

/// Of parts of 6, 7 and 1 rows on two ranks; in the last one a rank has none.
inline PlanRun run_by_hand(plan::StepPlan plan, double clip_norm = 0) {
  const Problem problem = mlp_problem();
  std::vector<Batch> batches = problem.batches(2, 13);
  batches.push_back(batches[0].rows(0, 1));
  PlanRun run{.plan = std::move(plan),
              .hosts = {},
              .problem = problem,
              .batches = std::move(batches),
              .options = {}};
  run.hosts = {run.plan.mesh.size()};
  run.options.optimizer = {.kind = train::OptimizerOptions::Kind::kSgd,
                           .lr = 0.1,
                           .momentum = 0.9,
                           .weight_decay = 0.01};
  run.options.clip_norm = clip_norm;
  return run;
}

}  // namespace stormo::test
