#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/ids.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// What ranks send each other at one time as messages: a tensor from stage to stage, or inside of a
/// segment that they compute together: of a map, so that each has the places that it reads
/// (plan::Window), or of states of a graph (plan::StateCrossing); or the gradients of that, back.
struct Crossing {
  struct Message {
    Rank from = 0, to = 0;
    std::int64_t bytes = 0;
    bool operator==(const Message&) const = default;
  };
  /// Whose ranks send. Of places first the rows, then the columns of these rows.
  std::string axis;
  std::vector<Message> messages = {};
  bool operator==(const Crossing&) const = default;
};

/// Those inside of segments that an action of a verified plan contains, in order; in forward,
/// recomputation and backward. None where nothing crosses a boundary. A place is sent once to each
/// rank that reads it, however many places of the output do. In backward the sum of its gradients
/// comes back from there; not where nothing in front of it is trained. So it is with states.
/// O(windows * ranks^2).
std::vector<Crossing> crossings_of(const plan::StepPlan& plan, const plan::Action& action,
                                   const StepSizes& sizes);

}  // namespace stormo::analysis
