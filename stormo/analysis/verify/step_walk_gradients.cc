// Where gradients are: terms of a sum, reduced, in parts, or read by peers.
#include <stormo/analysis/verify/step_walk.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::analysis {

using plan::Action;
using plan::ActionKind;
using plan::Placement;

Status StepWalk::reduce(const Action& a, Placement becomes) {
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    for (const std::size_t axis : axes_of(a)) {
      // what a rank has of the sum over one axis is a term of the sum over the others
      if (p.gradients[axis] != Placement::kPartial || p.read_by_peers[axis]) {
        return bad("needs terms of a sum, but " + placed(i, "gradients", p.gradients, axis) +
                   (p.read_by_peers[axis] ? ", and read by others" : ""));
      }
      p.gradients[axis] = becomes;
    }
    return {};
  });
}

Status StepWalk::all_reduce(const Action& a) {
  const bool weighted = a.asynchronous || has_worker_ranks();
  if (weighted && !counted_) return bad("comes before the weights are counted");
  weights_used_ = weights_used_ || weighted;
  return reduce(a, Placement::kReplicate);
}

Status StepWalk::reduce_scatter(const Action& a) {
  if (!counted_) return bad("comes before the weights are counted");
  weights_used_ = true;
  STORMO_RETURN_IF_ERROR(reduce(a, Placement::kShard));
  return each(a, true, [](std::size_t, Parameter& p) -> Status {
    p.terms_held = p.scattered = true;
    return {};
  });
}

Status StepWalk::release_gradients(const Action& a) {
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    return std::exchange(p.terms_held, false)
               ? Status()
               : bad("finds no terms of a reduce_scatter of " + name(i));
  });
}

/// Of a parameter that several stages read.
Status StepWalk::sum_tied(const Action& a) {
  STORMO_RETURN_IF_ERROR(gradients_complete(a));
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (!stages_.is_tied(static_cast<int>(i))) return bad("only one stage reads " + name(i));
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    STORMO_RETURN_IF_ERROR(in_place(i));
    for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
      if (is_own(i, axis)) continue;  // a sum of each replica, or worker, by itself
      const bool terms = p.gradients[axis] == Placement::kPartial;
      if (terms != (static_cast<int>(axis) == stage_axis_) && !one_rank(axis)) {
        return bad("needs the terms of each stage, reduced over other axes, but " +
                   placed(i, "gradients", p.gradients, axis));
      }
    }
    p.gradients[at(stage_axis_)] = Placement::kStaged;
    return {};
  });
}

/// Of what the ranks do not split that have parts of the positions.
Status StepWalk::sum_whole(const Action& a) {
  if (!plan_.sequence_parallel) return bad("finds no ranks that have parts of the positions");
  STORMO_RETURN_IF_ERROR(gradients_complete(a));
  bool any = false;
  STORMO_RETURN_IF_ERROR(each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (!is_trained_whole(shapes_[i])) return {};
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
      const bool terms = p.gradients[axis] == Placement::kPartial;
      const bool fits =
          static_cast<int>(axis) == tensor_axis_ ? terms : p.gradients[axis] != Placement::kShard;
      if (fits) continue;
      return bad("needs whole terms of each rank, but " +
                 placed(i, "gradients", p.gradients, axis));
    }
    p.gradients[at(tensor_axis_)] = Placement::kSplit;
    any = true;
    return {};
  }));
  return any ? Status() : bad("finds nothing to add up: the ranks split all of these parameters");
}

/// Among the ranks of each stage.
Status StepWalk::find_unused() {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    for (std::size_t axis = 0; axis < parameters_[i].gradients.size(); ++axis) {
      if (one_rank(axis) || static_cast<int>(axis) == stage_axis_ ||
          parameters_[i].gradients[axis] != Placement::kPartial)
        continue;
      return bad("needs reduced gradients, but " +
                 placed(i, "gradients", parameters_[i].gradients, axis));
    }
  }
  STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
  return once(unused_found_, "looks for unused gradients a second time");
}

Status StepWalk::share_gradients(const Action& a) {
  const std::size_t axis = axes_of(a).front();
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    if (plan_.optimizer_state[axis] != Placement::kShard) {
      return bad("shares gradients of " + name(i) + ", which nobody reads: the optimizer's " +
                 "state is not cut over " + plan_.mesh.axes[axis].name);
    }
    if (p.gradients[axis] != Placement::kPartial || p.read_by_peers[axis]) {
      return bad("needs terms that nobody reads yet, but " +
                 placed(i, "gradients", p.gradients, axis) +
                 (p.read_by_peers[axis] ? ", and read by others" : ""));
    }
    p.read_by_peers[axis] = true;
    return {};
  });
}

/// What a reduce_scatter has left becomes a gradient when it is known which are unused.
Status StepWalk::in_place(std::size_t i) const {
  if (!parameters_[i].scattered || unused_found_) return {};
  return bad("comes before find_unused, and gradients of " + name(i) + " are in parts");
}

/// Nowhere partial, but where the owner of a part reads the terms, or each worker has its own.
Status StepWalk::final_gradients(std::size_t i) const {
  const Parameter& p = parameters_[i];
  if (!p.has_gradients) return bad("finds no gradients of " + name(i));
  STORMO_RETURN_IF_ERROR(in_place(i));
  for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
    const bool own = is_own(i, axis) && p.weights[axis] == Placement::kDiverged;
    if (one_rank(axis) || p.gradients[axis] != Placement::kPartial || p.read_by_peers[axis] ||
        own) {
      continue;
    }
    return bad("needs reduced gradients, but " + placed(i, "gradients", p.gradients, axis));
  }
  return {};
}

}  // namespace stormo::analysis
