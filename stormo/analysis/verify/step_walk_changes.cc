// Where parameters and gradients are, by axis of the mesh.
#include <stormo/analysis/verify/step_walk.h>

#include <algorithm>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/plan/bad_plan.h>

namespace stormo::analysis {

using plan::Action;
using plan::bad;
using plan::Placement;

namespace {

bool are_terms(Placement gradients) {
  return gradients == Placement::kPartial || gradients == Placement::kShared;
}

}  // namespace

// --- gradients: terms of a sum, reduced, in parts, or read by peers ------------------------------

Status StepWalk::add_gradient(Parameter& p) {
  --p.additions_left;
  if (!p.shape->trainable) return {};
  if (p.updated || p.exchanged) {
    return bad("adds to the gradients of ", p.name(), " after its ",
               !p.updated                   ? "exchange"
               : averages_on_servers(plan_) ? "average"
               : remote_                    ? "push"
                                            : "update");
  }
  Placements terms(plan_.mesh.axes.size(), Placement::kPartial);
  if (stage_axis_ >= 0 && !stages_.is_tied(p.number)) terms[at(stage_axis_)] = Placement::kStaged;
  // What is split has gradients of slices. The rest has the same on each rank, unless that has only
  // some of the positions.
  if (tensor_axis_ >= 0 && !(plan_.sequence_parallel && is_trained_whole(p.shape))) {
    terms[at(tensor_axis_)] = Placement::kSplit;
  }
  for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
    if (p.gradients[axis] == terms[axis]) continue;
    if (p.gradients[axis] == Placement::kShared) {
      return bad("adds to gradients of ", p.name(), " that others read already");
    }
    return bad("adds to gradients that are reduced: ", placed_gradients(p, axis));
  }
  p.gradients = std::move(terms);
  p.has_gradients = true;
  return {};
}

/// No backward that is left adds to the gradients of the range.
Status StepWalk::gradients_complete(const Action& a) {
  return each(a, [](const Parameter& p) {
    if (p.additions_left == 0) return Status();
    return bad("comes before the last backward that adds to the gradients of ", p.name());
  });
}

/// What a rank has of the sum over one axis is a term of the sums over others.
Status StepWalk::has_terms(const Parameter& p, const std::vector<std::size_t>& axes,
                           Placement to) const {
  const bool of_stages = to == Placement::kStaged, of_whole = to == Placement::kSplit;
  for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
    const Placement now = p.gradients[axis];
    const bool named = std::ranges::count(axes, axis) > 0;
    const bool elsewhere = (of_stages && are_terms(now)) || (of_whole && now == Placement::kShard);
    if (named ? now == Placement::kPartial : !elsewhere) continue;
    if (of_stages && (p.is_own(axis) || one_rank(axis))) continue;  // each replica by itself
    return bad("needs ",
               of_stages                  ? "the terms of each stage, reduced over other axes"
               : of_whole                 ? "whole terms of each rank"
               : to == Placement::kShared ? "terms that nobody reads yet"
                                          : "terms of a sum",
               ", but ", placed_gradients(p, axis));
  }
  return {};
}

/// From terms to their sum, in the placement that the action makes.
Status StepWalk::reduce(const Action& a) {
  const Placement to = row_of(a.kind).change->to;
  if (to == Placement::kRemote) return push(a);
  if (to == Placement::kDiverged) return track(a);
  const bool of_stages = to == Placement::kStaged, of_whole = to == Placement::kSplit;
  if (of_whole && !plan_.sequence_parallel) {
    return bad("finds no ranks that have parts of the positions");
  }
  if (of_stages || of_whole) STORMO_RETURN_IF_ERROR(gradients_complete(a));
  std::vector<std::size_t> axes = axes_of(a);
  if (of_stages && stage_axis_ >= 0) axes = {at(stage_axis_)};
  if (of_whole) axes = {at(tensor_axis_)};
  bool any = false;
  const Status done = each(a, [&](Parameter& p) -> Status {
    if (of_whole && !is_trained_whole(p.shape)) return {};
    if (of_stages && !stages_.is_tied(p.number)) return bad("only one stage reads ", p.name());
    STORMO_RETURN_IF_ERROR(has_gradients(p, of_stages));
    if (to == Placement::kShared && plan_.optimizer_state[axes.front()] != Placement::kShard) {
      return bad("shares gradients of ", p.name(),
                 ", which nobody reads: the optimizer's state is not cut over ",
                 plan_.mesh.axes[axes.front()].name);
    }
    STORMO_RETURN_IF_ERROR(has_terms(p, axes, to));
    for (const std::size_t axis : axes) p.gradients[axis] = to;
    if (to == Placement::kShard) p.terms_held = p.scattered = true;
    any = true;
    return {};
  });
  if (any || !of_whole || !done.ok()) return done;
  return bad("finds nothing to add up: the ranks split all of these parameters");
}

/// This worker's, to the servers.
Status StepWalk::push(const Action& a) {
  return each(a, [this](Parameter& p) -> Status {
    if (p.updated) return bad("pushes gradients of ", p.name(), " a second time");
    if (p.copy_updated != has_worker_copies(plan_)) {
      return bad("comes before the update of the worker's copy of ", p.name());
    }
    STORMO_RETURN_IF_ERROR(final_gradients(p));
    p.has_gradients = false;
    p.updated = true;
    return {};
  });
}

/// Each rank's own, which stay its own.
Status StepWalk::track(const Action& a) {
  if (plan_.clipped || plan_.scaled_loss) {
    return bad("estimates the mean of gradients as they are, and the step scales or clips them");
  }
  STORMO_RETURN_IF_ERROR(gradients_complete(a));
  const std::size_t axis = axes_of(a).front();
  return each(a, [&](Parameter& p) -> Status {
    if (!p.is_own(axis)) {
      return bad(placed(p, "weights", (*p.at_rest)[axis], axis), " between steps");
    }
    if (p.updated) return bad("comes after the update of ", p.name());
    STORMO_RETURN_IF_ERROR(final_gradients(p));
    return std::exchange(p.tracked, true) ? bad("tracks the gradients of ", p.name(), " twice")
                                          : Status();
  });
}

/// Among the ranks of each stage.
Status StepWalk::find_unused() const {
  for (const Parameter& p : parameters_) {
    for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
      const bool of_stages = static_cast<int>(axis) == stage_axis_;
      if (one_rank(axis) || of_stages || !are_terms(p.gradients[axis])) continue;
      return bad("needs reduced gradients, but ", placed_gradients(p, axis));
    }
  }
  return micro_batches_.all_computed();
}

/// `whole`: what a reduce_scatter has left is one when it is known which are unused.
Status StepWalk::has_gradients(const Parameter& p, bool whole) const {
  if (!p.has_gradients) return bad("finds no gradients of ", p.name());
  if (!whole || !p.scattered || made_.has(plan::Value::kUnused)) return {};
  return bad("comes before find_unused, and gradients of ", p.name(), " are in parts");
}

/// Nowhere partial, but where the owner of a part reads the terms, or each worker has its own.
Status StepWalk::final_gradients(const Parameter& p) const {
  if (!p.shape->trainable) return {};
  STORMO_RETURN_IF_ERROR(has_gradients(p, /*whole=*/true));
  for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
    const bool own = p.is_own(axis) && p.weights[axis] == Placement::kDiverged;
    if (one_rank(axis) || p.gradients[axis] != Placement::kPartial || own) continue;
    return bad("needs reduced gradients, but ", placed_gradients(p, axis));
  }
  return {};
}

// --- parameters: whole, in parts, in one copy, on servers, or different on each rank -------------

Status StepWalk::change_parameters(const Action& a) {
  const plan::Change& change = *row_of(a.kind).change;
  if (change.from == Placement::kRemote) return pull(a);
  if (change.from == Placement::kDiverged) return change_diverged(a);
  if (row_of(a.kind).outer_updates()) return outer_update(a);
  for (int i = a.range.first; i <= a.range.last; ++i) {
    STORMO_RETURN_IF_ERROR(place(change, axes_of(a).front(), parameters_[at(i)]));
  }
  return {};
}

/// The whole, a part of it, or one copy, for the ranks of one axis.
Status StepWalk::place(const plan::Change& change, std::size_t axis, Parameter& p) {
  const Placement rest = (*p.at_rest)[axis];
  const bool gathers = change.to == Placement::kReplicate;
  const bool one_copy = change.to == Placement::kShared;
  if ((one_copy || (gathers && rest == Placement::kReplicate)) && !p.shape->trainable) return {};
  if (p.weights[axis] != change.from || (one_copy && rest != Placement::kShared)) {
    return bad("needs ",
               one_copy  ? "updated parts of one copy"
               : gathers ? "parts"
                         : "the whole",
               ", but ", placed(p, "weights", p.weights[axis], axis));
  }
  if (gathers && rest == Placement::kShared) {
    return bad("gathers ", p.name(), ", of which there is one copy; share_parameters does");
  }
  if (change.to == Placement::kShard && rest != Placement::kShard) {
    return bad("drops the whole of ", p.name(), ", which is to stay ", rest);
  }
  p.weights[axis] = change.to;
  return {};
}

Status StepWalk::pull(const Action& a) {
  const std::size_t workers = axes_of(a).front();
  return each(a, [workers](Parameter& p) {
    if (p.weights[workers] != Placement::kRemote) return bad("pulls ", p.name(), " a second time");
    // over the ranks of a worker; stages have their own
    std::ranges::replace(p.weights, Placement::kRemote, Placement::kReplicate);
    p.weights[workers] = Placement::kDiverged;
    return Status();
  });
}

/// Values that differ between ranks, or on workers of servers: averages on the ranks or on servers,
/// means with neighbours, what members of a population send, or moves towards a centre on servers.
Status StepWalk::change_diverged(const Action& a) {
  const Placement to = row_of(a.kind).change->to;
  const bool averages = to == Placement::kReplicate, exchanges = to == Placement::kRemote;
  if (averages_some(plan_, a)) return average_some(a);
  const bool meets = row_of(a.kind).of_population();
  if (!remote_ && (averages || exchanges || meets)) {
    if (every_ != 0 && a.every != every_) {
      return bad(exchanges ? "comes in other steps than exchanges before"
                 : meets   ? "comes in other steps than what members have sent before"
                           : "averages in other steps than those before");
    }
    every_ = a.every;
  }
  return each(a, [&](Parameter& p) -> Status {
    STORMO_RETURN_IF_ERROR(check_own(a, p, averages));
    if (exchanges) {  // a gradient is of the values that the exchange takes
      if (!p.has_gradients) {
        return bad("comes ", p.updated ? "after the update of " : "before the gradients of ",
                   p.name());
      }
      return std::exchange(p.exchanged, true) ? bad("exchanges a second time") : Status();
    }
    if (!averages) return meets ? meet(p) : mix(a, p);
    if (p.sent) return bad("averages ", p.name(), ", which members of a population have");
    if (!(remote_ ? p.copy_updated : p.updated)) {
      return bad("averages ", p.name(), " before its update");
    }
    if (remote_) p.has_gradients = false;  // the servers have what the worker made of them
    p.averaged_at = a.offset;
    p.averaging = a.asynchronous;
    p.encoded = a.codec != Codec::kNone;
    if (std::exchange(remote_ ? p.updated : p.averaged, true)) return bad("averages a second time");
    if (!row_of(a.kind).averages_state || std::exchange(p.averaged_slots, ~0u) == 0) return {};
    return bad("averages the state of ", p.name(), " a second time");
  });
}

/// Values differ over the axes that the action names, and where it averages over no others but a
/// worker's.
Status StepWalk::check_own(const Action& a, const Parameter& p, bool averages) const {
  for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
    const std::string& name = plan_.mesh.axes[axis].name;
    const bool named = std::ranges::count(a.axes, name) > 0;
    const bool counts = p.is_own(axis) || (averages && !remote_ && name == plan::kWorkerAxis);
    if (named == counts || !(named || averages)) continue;
    return bad(placed(p, "weights", (*p.at_rest)[axis], axis), " between steps");
  }
  return {};
}

/// Behind the update, and before the average of all ranks, where that is due.
Status StepWalk::average_some(const Action& a) {
  if (a.asynchronous || a.offset != 0 || a.codec != Codec::kNone) {
    return bad("averages among some ranks, which wait for all values, as they are");
  }
  return each(a, [&](Parameter& p) -> Status {
    STORMO_RETURN_IF_ERROR(check_own(a, p, /*averages=*/false));
    if (!p.updated) return bad("averages ", p.name(), " before its update");
    if (p.averaged) {
      return bad("averages ", p.name(), " among some ranks, and all have averaged it already");
    }
    if (std::exchange(p.averaged_some, true)) return bad("averages among some a second time");
    return {};
  });
}

/// As the update has left it. That of the next step is the first to read it.
Status StepWalk::average_slot(const Action& a) {
  return each(a, [&](Parameter& p) -> Status {
    STORMO_RETURN_IF_ERROR(check_own(a, p, /*averages=*/true));
    if (!p.updated) return bad("averages the state of ", p.name(), " before its update");
    const std::uint32_t slot = 1u << a.slot;
    if ((p.averaged_slots & slot) != 0) {
      return bad("averages the state of ", p.name(), " a second time");
    }
    p.averaged_slots |= slot;
    return {};
  });
}

/// Behind the update, where nothing reads the values before the next step. What is asynchronous
/// sends the values that it finds, and the update begins with the means.
Status StepWalk::mix(const Action& a, Parameter& p) const {
  if (p.averaged) return bad("mixes ", p.name(), ", which is averaged already");
  if (!a.asynchronous) {
    return p.updated ? Status() : bad("mixes ", p.name(), " before its update");
  }
  if (p.updated) return bad("is asynchronous, and no update of ", p.name(), " waits for it");
  return std::exchange(p.mixing, true) ? bad("mixes ", p.name(), ", which is being mixed already")
                                       : Status();
}

/// Members of a population keep values of their own: there are no averages.
Status StepWalk::meet(Parameter& p) {
  if (p.averaged) return bad("sends ", p.name(), ", which is averaged already");
  if (!p.updated) return bad("sends ", p.name(), " before its update");
  return std::exchange(p.sent, true) ? bad("sends ", p.name(), " a second time") : Status();
}

/// Of averages, once. Those that are asynchronous are taken in a later step, before the next ones.
Status StepWalk::outer_update(const Action& a) {
  return each(a, [&](Parameter& p) {
    if (!p.averaged) return bad("comes before the average of ", p.name());
    const bool waits = a.offset != p.averaged_at;
    if (a.every != every_ || (waits && !p.averaging)) {
      return bad("comes in other steps than the averages");
    }
    if (p.averaging && !waits) {
      return bad("comes in the same steps as the averages, which are asynchronous");
    }
    if (a.mixing != 0 && !p.averaging) {
      return bad("mixes averages with values that are older: these are not asynchronous");
    }
    p.averaging = false;
    return std::exchange(p.outer_updated, true) ? bad("updates ", p.name(), " a second time")
                                                : Status();
  });
}

}  // namespace stormo::analysis
