// What the tests of pipelines are about: schedules with sizes, and their plans.
#pragma once

#include <string>
#include <vector>

#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/plan/model/model_shape.h>

namespace stormo::parallel::test {

inline plan::ModelShape layers(int n, bool tied = false) {
  plan::ModelShape out;
  for (int i = 0; i < n; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 100}, {name + ".bias", 10}},
                            .flops_per_sample = 200,
                            .borrowed = {}});
  }
  if (tied) out.segments.back().borrowed = {0};
  return out;
}

/// A schedule with sizes.
struct PipelineCase {
  PipelineSchedule schedule;
  PipelineShape shape;
};

/// All schedules with those of these sizes that they have, and 1 to 3 chunks.
inline std::vector<PipelineCase> cases(const std::vector<int>& stages,
                                       const std::vector<int>& micro_batches) {
  std::vector<PipelineCase> out;
  for (const int p : stages) {
    for (const int m : micro_batches) {
      for (const std::string& name : pipeline_schedule_names()) {
        const PipelineSchedule s = pipeline_schedule(name).take_or_throw();
        for (const int chunks : {1, 2, 3}) {
          const PipelineShape shape{p, m, chunks};
          if (check(s, shape).ok()) out.push_back({s, shape});
        }
      }
    }
  }
  return out;
}

/// One segment is one part.
inline plan::StepPlan plan_of(const PipelineCase& c, const std::vector<Pass>& after = {},
                              bool tied = false) {
  const PipelineShape& s = c.shape;
  std::vector<Pass> passes = {
      micro_batches(s.micro_batches),
      pipeline({.stages = s.stages, .chunks = s.chunks, .schedule = c.schedule})};
  passes.insert(passes.end(), after.begin(), after.end());
  return compose(one_device(layers(s.stages * s.chunks, tied)), passes).take_or_throw();
}

inline std::string name_of(const PipelineCase& c) {
  return c.schedule.name + " p=" + std::to_string(c.shape.stages) +
         " m=" + std::to_string(c.shape.micro_batches) + " v=" + std::to_string(c.shape.chunks);
}

}  // namespace stormo::parallel::test
