// Scheduled model parallelism (STRADS).
//
// Idea: many small updates at the same time are fast, but wrong where variables depend on each
// other. So a scheduler, of which every rank has a copy, chooses for each step what is updated
// together. Cost per step: the gradients of what is chosen, and nothing for the choice. Papers: S.
// Lee et al., "On model parallelization and scheduling strategies for distributed machine
// learning", NIPS 2014; J. Kim et al., "STRADS: a distributed framework for scheduled model
// parallel machine learning", EuroSys 2016.
#include <stormo/parallel/replicas/choose.h>

#include <algorithm>
#include <string>

#include <stormo/plan/limits.h>

namespace stormo::parallel {

using plan::Action;
using plan::Value;

Pass choose(int depth, int every) {
  return [=](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    if (depth < 0 || depth > plan::kMaxDelay || every < 1 || every > plan::kMaxPeriod) {
      return invalid_argument("choose: " + std::to_string(depth) +
                              " steps under way, agree every " + std::to_string(every) +
                              "; give 0 to " + std::to_string(plan::kMaxDelay) + ", and 1 to " +
                              std::to_string(plan::kMaxPeriod));
    }
    if (in.scaled_loss || in.clipped) {
      return Status(Code::kBadPlan,
                    "choose: gradients are scaled or clipped as a whole, and a step has a few of "
                    "them; leave out float16 and clip_norm");
    }
    plan::StepPlan out = in;
    out.strategy += "+choose";
    out.chosen = true;
    bool loads = false, updates = false, agrees = false;
    for (std::size_t i = 0; i < out.actions.size(); ++i) {
      Action& a = out.actions[i];
      if (row_of(a.kind).reduces) a.asynchronous = depth > 0;
      if (makes(a, Value::kUpdated)) a.delay = depth, updates = true;
      if (row_of(a.kind).all_batches) a.every = every, agrees = true;
      if (!makes(a, Value::kBatch) || loads) continue;
      loads = true;
      out.actions.insert(out.actions.begin() + static_cast<std::ptrdiff_t>(i) + 1,
                         {.kind = plan::ActionKind::kChoose});
    }
    if (loads && updates && agrees) return out;
    return Status(Code::kBadPlan, "choose: the plan lacks load, update or agree");
  };
}

}  // namespace stormo::parallel
