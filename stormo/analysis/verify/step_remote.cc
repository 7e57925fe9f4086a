#include <stormo/analysis/verify/step_remote.h>

#include <string>
#include <vector>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/project.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::Placement;
using plan::Scope;
using plan::StepPlan;
using plan::Value;

using plan::bad;

bool has_worker_axis(const StepPlan& p) { return p.mesh.find(plan::kWorkerAxis) >= 0; }
/// Whether a worker is cut into stages or slices.
bool is_cut(const StepPlan& p) { return !model_axes(p.mesh).empty(); }

/// The first rank of a worker pushes, and all of them have what it pulls.
Status check_exchange(const StepPlan& p, const Action& a) {
  // its other ranks do not see the push, and have to refuse it, too
  if (has_worker_axis(p) && (a.asynchronous || a.range != plan::all_parameters(p.model))) {
    return bad("is of all parameters at once where a worker has several ranks");
  }
  if (!row_of(a.kind).takes_from(Placement::kRemote)) {
    return a.axes.front() == p.mesh.axes.front().name
               ? Status()
               : bad("is of whole workers, which are the axis '" + p.mesh.axes.front().name + "'");
  }
  return a.axes == data_axes(p.mesh)
             ? Status()
             : bad("gives all ranks of a worker the same version: name all axes");
}

/// Of a worker: it waits for no other one, and has no state to update. Its ranks do.
Status check_action_of_worker(const StepPlan& p, const Action& a) {
  const std::string where = "the parameters are remote over " + p.mesh.axes.front().name;
  const bool several_ranks = has_worker_axis(p) || is_cut(p);
  const bool in_worker = a.axes.empty() || a.axes == std::vector<std::string>{plan::kWorkerAxis};
  const plan::ActionRow& row = row_of(a.kind);
  if (row.makes.has(Value::kNorm) && !a.axes.empty() && !is_cut(p)) {
    return bad("takes no axis where " + where + ": it is the norm of one worker's own gradient");
  }
  if (row.makes.has(Value::kUpdated) && !has_worker_copies(p)) {
    return bad(where + "; the servers update them, after a push");
  }
  if (row.all_batches) {
    return several_ranks ? Status()
                         : bad("lets ranks wait for each other, but " + where +
                               ", whose workers do not: loss and stop travel beside the data path");
  }
  const bool averages = row.is({Value::kParameters, Placement::kDiverged, Placement::kReplicate});
  if (averages && several_ranks) return bad("is of workers of one rank, which have a copy each");
  const bool of_copies = row.takes_from(Placement::kDiverged);  // with a centre, or neighbours
  if (averages || (row.scope == Scope::kServers && !of_copies)) return check_exchange(p, a);
  if (row.scope < Scope::kRanks) return {};
  const bool adds_up =
      row.makes.has(Value::kWeights) || row.places(Value::kGradients, Placement::kReplicate);
  if (adds_up && has_worker_axis(p) && in_worker) return {};
  return bad("is for values that the ranks hold together, but " + where +
             "; workers use pull and push");
}

/// Of a worker with a copy of its own, which exchanges with a centre: it waits for no other one.
Status check_action_beside_centre(const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  if (row.places(Value::kParameters, Placement::kRemote)) return {};
  if (row.scope != Scope::kRank) {
    return bad("lets ranks wait for each other, but those that exchange with a centre do not");
  }
  return row.axes != plan::AxesOf::kAny || a.axes.empty()
             ? Status()
             : bad("takes no axis where ranks exchange with a centre: it is of one worker's own "
                   "gradient");
}

}  // namespace

Status check_remote_state(const StepPlan& p) {
  for (std::size_t i = 0; i < p.mesh.axes.size(); ++i) {
    const auto is = [i](const std::vector<Placement>& placed) {
      return i < placed.size() && placed[i] == Placement::kRemote;
    };
    const bool remote = is(p.parameters);
    const std::string axis = " over " + p.mesh.axes[i].name;
    if (is(p.frozen)) {
      return bad("state frozen: remote" + axis + "; servers have only what they update");
    }
    if (remote != is(p.optimizer_state)) {
      return bad(std::string("state ") + (remote ? "optimizer" : "parameters") + ": not remote" +
                 axis + ", where the " + (remote ? "parameters are" : "optimizer's state is") +
                 "; servers keep both");
    }
    const bool of_workers = i == 0 || p.mesh.axes[i].name == plan::kWorkerAxis;
    const std::size_t most = (has_worker_axis(p) ? 2 : 1) + model_axes(p.mesh).size();
    if (remote && (!of_workers || p.mesh.axes.size() > most)) {
      return bad("state parameters: remote" + axis + ", but the mesh has other axes; the workers " +
                 "are its only one");
    }
  }
  if (!has_worker_axis(p)) return {};
  const bool remote = p.parameters == std::vector(2, Placement::kRemote);
  return remote && p.mesh.axes.back().name == plan::kWorkerAxis
             ? Status()
             : bad("state parameters: not remote over the axis of workers and then '" +
                   std::string(plan::kWorkerAxis) + "', whose ranks are a worker of servers");
}

Status check_remote_action(const StepPlan& p, bool centre, const Action& a) {
  if (is_remote(p)) return check_action_of_worker(p, a);
  if (centre) return check_action_beside_centre(a);
  if (row_of(a.kind).scope != Scope::kServers) return {};
  return bad("needs parameters on servers, but state parameters is nowhere remote");
}

}  // namespace stormo::analysis
