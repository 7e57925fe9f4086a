#pragma once

#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/estimate/step_sizes.h>
#include <stormo/train/options.h>

#include "toy.h"

namespace stormo::test {

/// Of make_toy_module(), in one segment.
inline plan::ModelShape toy_shape() {
  plan::ModelShape shape{.segments = {{.name = "toy", .parameters = {}, .borrowed = {}}}};
  for (const auto& p : make_toy_module(3)->named_parameters()) {
    shape.segments[0].parameters.push_back(
        {.name = p.key(), .elements = p.value().numel(), .dtype = DType::kFloat64});
  }
  return shape;
}

/// What a step of `plan` sends, with the algorithms that ranks choose by default.
inline analysis::StepCost toy_cost(const plan::StepPlan& plan, const std::vector<int>& hosts,
                                   const train::TrainerOptions& options) {
  comm::CollectiveModel model({}, comm::Selection::defaults());
  return analysis::cost(plan, hosts, train::step_sizes_of(options),
                        [&](const auto& on, const auto& c) { return model.traffic(on, c); })
      .take_or_throw();
}

}  // namespace stormo::test
