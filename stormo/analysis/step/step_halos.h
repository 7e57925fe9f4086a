#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/analysis/step/step_collectives.h>
#include <stormo/base/ids.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// What ranks send each other of one map, so that each has the places that it reads (plan::Window);
/// or of its gradient, back.
struct HaloExchange {
  struct Message {
    Rank from = 0, to = 0;
    std::int64_t bytes = 0;
    bool operator==(const Message&) const = default;
  };
  std::string axis;  ///< whose ranks exchange: first the rows, then the columns of these rows
  std::vector<Message> messages = {};
  bool operator==(const HaloExchange&) const = default;
};

/// Those that an action of a verified plan contains, in order; in forward, recomputation and
/// backward. None where nothing crosses a boundary. A place is sent once to each rank that reads
/// it, however many places of the output do. In backward the sum of its gradients comes back from
/// there; not where nothing in front of it is trained. O(windows * ranks).
std::vector<HaloExchange> halos_of(const plan::StepPlan& plan, const plan::Action& action,
                                   const StepSizes& sizes);

}  // namespace stormo::analysis
