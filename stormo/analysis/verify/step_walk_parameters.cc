// Where parameters are: whole, in parts, in one copy, on servers, or different on each rank.
#include <stormo/analysis/verify/step_walk.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::analysis {

using plan::Action;
using plan::ActionKind;
using plan::Placement;

Status StepWalk::all_gather(const Action& a) {
  const std::size_t axis = axes_of(a).front();
  return each(a, false, [&](std::size_t i, Parameter& p) -> Status {
    if (at_rest(i)[axis] == Placement::kReplicate && !shapes_[i]->trainable) return {};
    if (p.weights[axis] != Placement::kShard) {
      return bad("needs parts, but " + placed(i, "weights", p.weights, axis));
    }
    if (at_rest(i)[axis] == Placement::kShared) {
      return bad("gathers " + name(i) + ", of which there is one copy; share_parameters does");
    }
    p.weights[axis] = Placement::kReplicate;
    return {};
  });
}

Status StepWalk::reshard(const Action& a) {
  const std::size_t axis = axes_of(a).front();
  return each(a, false, [&](std::size_t i, Parameter& p) -> Status {
    if (p.weights[axis] != Placement::kReplicate) {
      return bad("needs the whole, but " + placed(i, "weights", p.weights, axis));
    }
    if (at_rest(i)[axis] != Placement::kShard) {
      return bad("drops the whole of " + name(i) + ", which is to stay " +
                 std::string(to_string(at_rest(i)[axis])));
    }
    p.weights[axis] = Placement::kShard;
    return {};
  });
}

Status StepWalk::share_parameters(const Action& a) {
  const std::size_t axis = axes_of(a).front();
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (plan_.parameters[axis] != Placement::kShared || p.weights[axis] != Placement::kShard) {
      return bad("needs updated parts of one copy, but " + placed(i, "weights", p.weights, axis));
    }
    p.weights[axis] = Placement::kShared;
    return {};
  });
}

Status StepWalk::pull(const Action& a) {
  const std::size_t workers = axes_of(a).front();
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (p.weights[workers] != Placement::kRemote) return bad("pulls " + name(i) + " a second time");
    // over the ranks of a worker; stages have their own
    std::ranges::replace(p.weights, Placement::kRemote, Placement::kReplicate);
    p.weights[workers] = Placement::kDiverged;
    return {};
  });
}

Status StepWalk::push(const Action& a) {
  STORMO_RETURN_IF_ERROR(factors_.update());
  if (has_worker_ranks() && !counted_) return bad("comes before the weights are counted");
  weights_used_ = counted_;
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (p.updated) return bad("pushes gradients of " + name(i) + " a second time");
    if (p.copy_updated != has_worker_copies(plan_)) {
      return bad("comes before the update of the worker's copy of " + name(i));
    }
    STORMO_RETURN_IF_ERROR(final_gradients(i));
    p.has_gradients = false;
    p.updated = true;
    return {};
  });
}

/// What ranks do with values that differ between them.
Status StepWalk::of_diverged(const Action& a) {
  switch (a.kind) {
    case ActionKind::kAverage: return average(a);
    case ActionKind::kExchange: return exchange(a);
    case ActionKind::kMix: {
      const std::size_t axis = axes_of(a).front();
      return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
        if (!diverges(i, axis)) {
          return bad(placed(i, "weights", at_rest(i), axis) + " between steps");
        }
        if (!p.updated) return bad("mixes " + name(i) + " before its update");
        return p.averaged ? bad("mixes " + name(i) + ", which is averaged already") : Status();
      });
    }
    default: return bad("is of no known kind");
  }
}

/// A worker's copies go to the servers, and its gradients are done with.
Status StepWalk::average_on_servers(const Action& a) {
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (!p.copy_updated) return bad("averages " + name(i) + " before its update");
    p.has_gradients = false;
    return once(p.updated, "averages a second time");
  });
}

Status StepWalk::average(const Action& a) {
  if (remote_) return average_on_servers(a);
  if (every_ != 0 && a.every != every_) return bad("averages in other steps than those before");
  every_ = a.every;
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
      const std::string& over = plan_.mesh.axes[axis].name;
      const bool named = std::ranges::count(a.axes, over) > 0;
      if (named == diverges(i, axis)) continue;
      return bad(placed(i, "weights", at_rest(i), axis) + " between steps");
    }
    if (!p.updated) return bad("averages " + name(i) + " before its update");
    return once(p.averaged, "averages a second time");
  });
}

// A gradient is of the values that the exchange takes.
Status StepWalk::exchange(const Action& a) {
  if (every_ != 0 && a.every != every_) return bad("comes in other steps than exchanges before");
  every_ = a.every;
  const std::size_t axis = axes_of(a).front();
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (!diverges(i, axis)) return bad(placed(i, "weights", at_rest(i), axis) + " between steps");
    if (!p.has_gradients) {
      return bad((p.updated ? "comes after the update of " : "comes before the gradients of ") +
                 name(i));
    }
    return once(p.exchanged, "exchanges a second time");
  });
}

}  // namespace stormo::analysis
