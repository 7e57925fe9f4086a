// Where parameters are: whole, in parts, in one copy, on servers, or different on each rank.
#include <stormo/analysis/verify/step_walk.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::analysis {

using plan::Action;
using plan::Placement;

Status StepWalk::change_parameters(const Action& a) {
  const plan::Change& change = *row_of(a.kind).change;
  if (change.from == Placement::kRemote) return pull(a);
  if (change.from == Placement::kDiverged) return bring_together(a);
  return each(a, change.to == Placement::kShared,
              [&](std::size_t i, Parameter& p) { return place(change, axes_of(a).front(), i, p); });
}

/// The whole, a part of it, or one copy, for the ranks of one axis.
Status StepWalk::place(const plan::Change& change, std::size_t axis, std::size_t i, Parameter& p) {
  const Placement rest = at_rest(i)[axis];
  const bool gathers = change.to == Placement::kReplicate;
  if (gathers && rest == Placement::kReplicate && !shapes_[i]->trainable) return {};
  const bool one_copy = change.to == Placement::kShared;
  if (p.weights[axis] != change.from || (one_copy && rest != Placement::kShared)) {
    const char* const needed = one_copy  ? "updated parts of one copy"
                               : gathers ? "parts"
                                         : "the whole";
    return bad(std::string("needs ") + needed + ", but " + placed(i, "weights", p.weights, axis));
  }
  if (gathers && rest == Placement::kShared) {
    return bad("gathers " + name(i) + ", of which there is one copy; share_parameters does");
  }
  if (change.to == Placement::kShard && rest != Placement::kShard) {
    return bad("drops the whole of " + name(i) + ", which is to stay " +
               std::string(to_string(rest)));
  }
  p.weights[axis] = change.to;
  return {};
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

/// Values that differ between ranks, or on workers of servers: averages on the ranks or on servers,
/// means with neighbours, or moves towards a centre on servers.
Status StepWalk::bring_together(const Action& a) {
  const Placement to = row_of(a.kind).change->to;
  const bool averages = to == Placement::kReplicate, exchanges = to == Placement::kRemote;
  const char* const verb = averages ? "averages" : "mixes";
  if (!remote_ && (averages || exchanges)) {
    if (every_ != 0 && a.every != every_) {
      return bad(exchanges ? "comes in other steps than exchanges before"
                           : "averages in other steps than those before");
    }
    every_ = a.every;
  }
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
      const bool named = std::ranges::count(a.axes, plan_.mesh.axes[axis].name) > 0;
      if (named == is_own(i, axis) || !(named || averages)) continue;
      return bad(placed(i, "weights", at_rest(i), axis) + " between steps");
    }
    if (exchanges) {  // a gradient is of the values that the exchange takes
      if (p.has_gradients) return once(p.exchanged, "exchanges a second time");
      return bad((p.updated ? "comes after the update of " : "comes before the gradients of ") +
                 name(i));
    }
    if (!(remote_ ? p.copy_updated : p.updated)) {
      return bad(std::string(verb) + " " + name(i) + " before its update");
    }
    if (remote_) p.has_gradients = false;  // the servers have what the worker made of them
    if (averages) return once(remote_ ? p.updated : p.averaged, "averages a second time");
    return p.averaged ? bad("mixes " + name(i) + ", which is averaged already") : Status();
  });
}

}  // namespace stormo::analysis
