// The example of docs/guides/add-a-pipeline-schedule.md.
#include <algorithm>
#include <string>
#include <vector>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/plan/project.h>

#include <gtest/gtest.h>

namespace stormo::parallel {

/// As gpipe(), but the last micro-batch comes back first, while its activations are still in the
/// caches. Idle share and activations as gpipe(). Y. Huang et al., "GPipe", NeurIPS 2019, figure 2.
PipelineSchedule reversed_gpipe() {
  return {.name = "reversed_gpipe",
          .check = [](const PipelineShape&) { return Status(); },
          .order =
              [](const PipelineShape& shape, int /*stage*/) {
                std::vector<StageStep> out;
                for (int m = 0; m < shape.micro_batches; ++m) {
                  out.push_back({.kind = StageStep::Kind::kForward, .micro_batch = m});
                }
                for (int m = shape.micro_batches - 1; m >= 0; --m) {
                  out.push_back({.kind = StageStep::Kind::kBackward, .micro_batch = m});
                }
                return out;
              }};
}

}  // namespace stormo::parallel

namespace stormo::parallel {
namespace {

plan::StepPlan plan_of(const PipelineSchedule& schedule, int stages, int batches) {
  plan::ModelShape model;
  for (int s = 0; s < stages; ++s) {
    const std::string name = "layer" + std::to_string(s);
    model.segments.push_back({.name = name,
                              .parameters = {{name + ".weight", 100}, {name + ".bias", 10}},
                              .flops_per_sample = 200,
                              .borrowed = {}});
  }
  return compose(one_device(model), micro_batches(batches),
                 pipeline({.stages = stages, .schedule = schedule}))
      .take_or_throw();
}

/// Of a step: a forward takes 1 s, a backward 2 s, a move half a second. Each stage is on a host.
double seconds_of(const PipelineSchedule& schedule, int stages, int batches) {
  const plan::StepPlan p = plan_of(schedule, stages, batches);
  const auto n = static_cast<std::size_t>(stages);
  const analysis::ComputeTimes times{.forward = std::vector<double>(n, 1.0),
                                     .backward = std::vector<double>(n, 2.0)};
  analysis::StepSizes sizes;
  sizes.outputs.assign(n, 1);
  return analysis::simulate(p, std::vector<int>(n, 1), sizes,
                            {.compute = analysis::compute_times(p, times),
                             .collective = [](auto&, auto&) { return 0.0; },
                             .stages_between_hosts = {.latency_s = 0, .seconds_per_byte = 0.5}})
      .take_or_throw()
      .seconds;
}

TEST(ReversedGpipe, KeepsTheActivationsOfAllMicroBatches) {
  for (const int stages : {2, 4}) {
    for (const int batches : {1, 4, 16}) {
      const plan::StepPlan p = plan_of(reversed_gpipe(), stages, batches);
      for (int stage = 0; stage < stages; ++stage) {
        int now = 0, most = 0;
        for (const plan::Action& a : project(p, stage).actions) {
          if (a.kind == plan::ActionKind::kForward) most = std::max(most, ++now);
          if (a.kind == plan::ActionKind::kBackward) --now;
        }
        EXPECT_EQ(most, batches) << "stage " << stage;
      }
    }
  }
}

TEST(ReversedGpipe, TakesTheTimeOfGpipe) {
  for (const int stages : {2, 4}) {
    for (const int batches : {1, 4, 16}) {
      const double seconds = (batches + stages - 1) * (1 + 2) + 2 * (stages - 1) * 0.5;
      EXPECT_DOUBLE_EQ(seconds_of(reversed_gpipe(), stages, batches), seconds);
      EXPECT_DOUBLE_EQ(seconds_of(gpipe(), stages, batches), seconds);
    }
  }
}

}  // namespace
}  // namespace stormo::parallel
