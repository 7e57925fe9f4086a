// Workers of servers go on by themselves: what their actions may do.
#include <string>
#include <vector>

#include <stormo/plan/bad_plan.h>
#include <stormo/plan/check/check.h>
#include <stormo/plan/project.h>

namespace stormo::plan {
namespace {

bool has_worker_axis(const StepPlan& p) { return p.mesh.find(kWorkerAxis) >= 0; }
/// Whether a worker is cut into stages or slices.
bool is_cut(const StepPlan& p) { return !model_axes(p.mesh).empty(); }

/// The first rank of a worker pushes, and all of them have what it pulls.
Status check_exchange(const StepPlan& p, const Action& a) {
  // its other ranks do not see the push, and have to refuse it, too
  if (has_worker_axis(p) && (a.asynchronous || a.range != all_parameters(p.model))) {
    return bad("is of all parameters at once where a worker has several ranks");
  }
  if (row_of(a.kind).takes_from(Placement::kRemote)) {
    if (a.axes == data_axes(p.mesh)) return {};
    return bad("gives all ranks of a worker the same version: name all axes");
  }
  const std::string& workers = p.mesh.axes.front().name;
  if (a.axes.front() == workers) return {};
  return bad("is of whole workers, which are the axis '", workers, "'");
}

/// Of a worker: it waits for no other one, and has no state to update. Its ranks do.
Status check_worker(const StepPlan& p, const Action& a) {
  const std::string where = "the parameters are remote over " + p.mesh.axes.front().name;
  const bool several_ranks = has_worker_axis(p) || is_cut(p);
  const ActionRow& row = row_of(a.kind);
  if (row.makes.has(Value::kNorm) && !a.axes.empty() && !is_cut(p)) {
    return bad("takes no axis where ", where, ": it is the norm of one worker's own gradient");
  }
  if (row.makes.has(Value::kUpdated) && !has_worker_copies(p)) {
    return bad(where, "; the servers update them, after a push");
  }
  if (row.all_batches) {
    if (several_ranks) return {};
    return bad("lets ranks wait for each other, but ", where,
               ", whose workers do not: loss and stop travel beside the data path");
  }
  if (row.averages() && several_ranks)
    return bad("is of workers of one rank, which have a copy each");
  if (row.averages() && !row.averages_state)
    return bad("leaves the optimizer's state to each rank, and servers average it, too");
  const bool of_copies = row.takes_from(Placement::kDiverged);  // with a centre, or neighbours
  if (row.averages() || (row.scope == Scope::kServers && !of_copies)) return check_exchange(p, a);
  const bool adds_up =
      row.makes.has(Value::kWeights) || row.places(Value::kGradients, Placement::kReplicate);
  const bool in_worker = a.axes.empty() || a.axes == std::vector<std::string>{kWorkerAxis};
  if (row.scope < Scope::kRanks || (adds_up && has_worker_axis(p) && in_worker)) return {};
  return bad("is for values that the ranks hold together, but ", where,
             "; workers use pull and push");
}

/// Of a worker with a copy of its own, which exchanges with a centre: it waits for no other one.
Status check_beside_centre(const Action& a) {
  const ActionRow& row = row_of(a.kind);
  if (row.places(Value::kParameters, Placement::kRemote)) return {};
  if (row.scope != Scope::kRank) {
    return bad("lets ranks wait for each other, but those that exchange with a centre do not");
  }
  if (row.axes != AxesOf::kAny || a.axes.empty()) return {};
  return bad(
      "takes no axis where ranks exchange with a centre: it is of one worker's own gradient");
}

}  // namespace

Status check_workers(const StepPlan& p, bool centre, const Action& a) {
  if (is_remote(p)) return check_worker(p, a);
  if (centre) return check_beside_centre(a);
  if (row_of(a.kind).scope != Scope::kServers) return {};
  return bad("needs parameters on servers, but state parameters is nowhere remote");
}

}  // namespace stormo::plan
