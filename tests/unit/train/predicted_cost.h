#pragma once

#include <stormo/analysis/step/step_cost.h>
#include <stormo/comm/selection/collective_model.h>

#include "tests/unit/train/plan_run.h"

namespace stormo::test {

/// What a step of the run sends, with the algorithms that ranks choose by default.
inline analysis::StepCost predicted_cost(const PlanRun& run, const analysis::StepSizes& sizes) {
  comm::CollectiveModel model({}, comm::Selection::defaults());
  return analysis::cost(run.plan, run.hosts, sizes,
                        [&](const auto& hosts, const auto& c) { return model.traffic(hosts, c); })
      .take_or_throw();
}

}  // namespace stormo::test
