#include <stormo/parallel/computation/commit_before_update.h>

#include <algorithm>

#include <string>

#include <stormo/plan/project.h>

namespace stormo::parallel {

using plan::Action;
using plan::Value;

Pass commit_before_update() {
  return [](const plan::StepPlan& in) -> Result<plan::StepPlan> {
    const auto bad = [](const char* why) {
      return Status(Code::kBadPlan, std::string("commit_before_update: ") + why);
    };
    if (in.commits) return bad("the plan commits already; apply it once");
    if (has_servers(in)) return bad("servers update, and no rank waits for all gradients");
    if (longest_delay(in) > 0) return bad("steps overlap, so none is over before the next begins");
    const auto travels = [](const Action& a) {
      return row_of(a.kind).averages() && a.asynchronous;
    };
    if (is_staggered(in) || std::ranges::any_of(in.actions, travels)) {
      return bad("fragments have averages behind different steps, or under way when a step ends");
    }
    const auto of_some = [&in](const Action& a) { return averages_some(in, a); };
    if (averages_slots(in) || std::ranges::any_of(in.actions, of_some)) {
      return bad("averages of the state, or of a host, have periods of their own");
    }
    const bool has_peers = copy_of_model(in.mesh, 0).parts > 1;
    for (std::size_t axis = 0; axis < in.optimizer_state.size(); ++axis) {
      const bool is_whole = in.optimizer_state[axis] == plan::Placement::kReplicate ||
                            in.optimizer_state[axis] == plan::Placement::kDiverged;
      const bool is_stage = has_peers && in.mesh.axes[axis].name == plan::kStageAxis;
      if (is_whole || is_stage || in.parameters[axis] == plan::Placement::kShared) continue;
      return bad("a rank has parts of the state that no other one has, and may be lost");
    }
    plan::StepPlan out = in;
    out.strategy += "+commit_before_update";
    out.commits = true;
    const auto updates = [](const Action& a) { return makes(a, Value::kUpdated); };
    const auto ends_update = [](const Action& a) {
      const plan::ActionRow& row = row_of(a.kind);
      return places(a, Value::kParameters, plan::Placement::kShared) || row.averages() ||
             row.outer_updates();
    };
    if (std::ranges::any_of(out.actions,
                            [&](const Action& a) { return updates(a) && !a.axes.empty(); })) {
      return bad("an update adds up norms over ranks, of which one may be lost meanwhile");
    }
    const auto update = std::ranges::find_if(out.actions, updates);
    if (update == out.actions.end()) return bad("the plan has no update");
    // what else comes behind the first update, and is none, a commit has to wait for
    std::stable_partition(update, out.actions.end(), [&](const Action& a) {
      return !updates(a) && !ends_update(a) && !row_of(a.kind).all_batches;
    });
    out.actions.insert(std::ranges::find_if(out.actions, updates),
                       {.kind = plan::ActionKind::kCommit});
    return out;
  };
}

}  // namespace stormo::parallel
