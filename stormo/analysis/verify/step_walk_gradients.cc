// Where gradients are: terms of a sum, reduced, in parts, or read by peers.
#include <stormo/analysis/verify/step_walk.h>

#include <algorithm>
#include <string>
#include <utility>

namespace stormo::analysis {

using plan::Action;
using plan::Placement;

namespace {

bool has_terms(Placement gradients) {
  return gradients == Placement::kPartial || gradients == Placement::kShared;
}

}  // namespace

Status StepWalk::add_gradient(std::size_t i) {
  Parameter& p = parameters_[i];
  --p.additions_left;
  if (!shapes_[i]->trainable) return {};
  if (p.updated) return bad("adds to the gradients of " + name(i) + " after its " + ending());
  if (p.exchanged) return bad("adds to the gradients of " + name(i) + " after its exchange");
  std::vector<Placement> terms(plan_.mesh.axes.size(), Placement::kPartial);
  if (stage_axis_ >= 0 && !stages_.is_tied(static_cast<int>(i))) {
    terms[at(stage_axis_)] = Placement::kStaged;
  }
  // What is split has gradients of slices. The rest has the same on each rank, unless that has only
  // some of the positions.
  if (tensor_axis_ >= 0 && !(plan_.sequence_parallel && is_trained_whole(shapes_[i]))) {
    terms[at(tensor_axis_)] = Placement::kSplit;
  }
  for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
    if (p.gradients[axis] == terms[axis]) continue;
    if (p.gradients[axis] == Placement::kShared) {
      return bad("adds to gradients of " + name(i) + " that others read already");
    }
    return bad("adds to gradients that are reduced: " + placed_gradients(i, axis));
  }
  p.gradients = std::move(terms);
  p.has_gradients = true;
  return {};
}

/// No backward that is left adds to the gradients of the range.
Status StepWalk::gradients_complete(const Action& a) const {
  for (int p = a.range.first; p <= a.range.last; ++p) {
    if (!shapes_[at(p)]->trainable || parameters_[at(p)].additions_left == 0) continue;
    return bad("comes before the last backward that adds to the gradients of " + name(at(p)));
  }
  return {};
}

/// What a rank has of the sum over one axis is a term of the sums over others.
Status StepWalk::has_terms_over(const std::vector<std::size_t>& axes, std::size_t i,
                                Placement to) const {
  const std::vector<Placement>& now = parameters_[i].gradients;
  const bool of_stages = to == Placement::kStaged, of_whole = to == Placement::kSplit;
  for (std::size_t axis = 0; axis < now.size(); ++axis) {
    if (of_stages && (is_own(i, axis) || one_rank(axis))) continue;  // each replica by itself
    const bool fits = std::ranges::count(axes, axis) > 0 ? now[axis] == Placement::kPartial
                      : of_stages                        ? !has_terms(now[axis])
                                  : !of_whole || now[axis] != Placement::kShard;
    if (fits) continue;
    const char* const terms = of_stages  ? "the terms of each stage, reduced over other axes"
                              : of_whole ? "whole terms of each rank"
                              : to == Placement::kShared ? "terms that nobody reads yet"
                                                         : "terms of a sum";
    return bad(std::string("needs ") + terms + ", but " + placed_gradients(i, axis));
  }
  return {};
}

/// From terms to their sum, in the placement that the action makes.
Status StepWalk::reduce(const Action& a) {
  const Placement to = row_of(a.kind).change->to;
  const bool of_stages = to == Placement::kStaged, of_whole = to == Placement::kSplit;
  if (of_whole && !plan_.sequence_parallel) {
    return bad("finds no ranks that have parts of the positions");
  }
  if (of_stages || of_whole) STORMO_RETURN_IF_ERROR(gradients_complete(a));
  const bool scaled_before = (a.asynchronous && !plan_.chosen) || has_worker_ranks();
  if (to == Placement::kReplicate && scaled_before) {
    STORMO_RETURN_IF_ERROR(values_.use_weights());
  }
  std::vector<std::size_t> axes = axes_of(a);
  if (of_stages && stage_axis_ >= 0) axes = {at(stage_axis_)};
  if (of_whole) axes = {at(tensor_axis_)};
  bool any = false;
  const auto reduce_one = [&](std::size_t i, Parameter& p) -> Status {
    if (of_whole && !is_trained_whole(shapes_[i])) return {};
    if (of_stages && !stages_.is_tied(static_cast<int>(i))) {
      return bad("only one stage reads " + name(i));
    }
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    if (of_stages) STORMO_RETURN_IF_ERROR(in_place(i));
    if (to == Placement::kShared && plan_.optimizer_state[axes.front()] != Placement::kShard) {
      return bad("shares gradients of " + name(i) + ", which nobody reads: the optimizer's " +
                 "state is not cut over " + plan_.mesh.axes[axes.front()].name);
    }
    STORMO_RETURN_IF_ERROR(has_terms_over(axes, i, to));
    for (const std::size_t axis : axes) p.gradients[axis] = to;
    if (to == Placement::kShard) p.terms_held = p.scattered = true;
    any = true;
    return {};
  };
  STORMO_RETURN_IF_ERROR(each(a, true, reduce_one));
  return any || !of_whole ? Status()
                          : bad("finds nothing to add up: the ranks split all of these parameters");
}

Status StepWalk::release(const Action& a) {
  return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
    return std::exchange(p.terms_held, false)
               ? Status()
               : bad("finds no terms of a reduce_scatter of " + name(i));
  });
}

/// Among the ranks of each stage.
Status StepWalk::find_unused() const {
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    const std::vector<Placement>& now = parameters_[i].gradients;
    for (std::size_t axis = 0; axis < now.size(); ++axis) {
      if (one_rank(axis) || static_cast<int>(axis) == stage_axis_ || !has_terms(now[axis]))
        continue;
      return bad("needs reduced gradients, but " + placed_gradients(i, axis));
    }
  }
  return micro_batches_.all_computed();
}

/// This worker's, to the servers.
Status StepWalk::push(const Action& a) {
  if (has_worker_ranks()) STORMO_RETURN_IF_ERROR(values_.use_weights());
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

/// What a reduce_scatter has left becomes a gradient when it is known which are unused.
Status StepWalk::in_place(std::size_t i) const {
  if (!parameters_[i].scattered || values_.have(plan::Value::kUnused)) return {};
  return bad("comes before find_unused, and gradients of " + name(i) + " are in parts");
}

/// Nowhere partial, but where the owner of a part reads the terms, or each worker has its own.
Status StepWalk::final_gradients(std::size_t i) const {
  const Parameter& p = parameters_[i];
  if (!p.has_gradients) return bad("finds no gradients of " + name(i));
  STORMO_RETURN_IF_ERROR(in_place(i));
  for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
    const bool own = is_own(i, axis) && p.weights[axis] == Placement::kDiverged;
    if (one_rank(axis) || p.gradients[axis] != Placement::kPartial || own) continue;
    return bad("needs reduced gradients, but " + placed_gradients(i, axis));
  }
  return {};
}

}  // namespace stormo::analysis
