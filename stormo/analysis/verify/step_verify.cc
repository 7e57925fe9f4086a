#include <stormo/analysis/verify/step_verify.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_overlap.h>
#include <stormo/analysis/verify/step_walk.h>
#include <stormo/analysis/verify/step_workers.h>
#include <stormo/plan/check.h>

namespace stormo::analysis {

using plan::Action;
using plan::Placement;
using plan::StepPlan;
using plan::Value;

StepWalk::StepWalk(const StepPlan& plan)
    : plan_(plan),
      shapes_(flatten(plan.model)),
      reads_(parameters_read(plan.model)),
      parameters_(shapes_.size()),
      micro_batches_(plan),
      values_(plan),
      stages_(plan.model),
      stage_axis_(plan.mesh.find(plan::kStageAxis)),
      tensor_axis_(plan.mesh.find(plan::kTensorAxis)),
      remote_(is_remote(plan)) {
  while (at(frozen_) < reads_.size() && !trains(frozen_)) ++frozen_;
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    parameters_[i].weights = at_rest(i);
  }
  for (const Action& a : plan.actions) {
    if (row_of(a.kind).adds_gradients) {
      for (int s = a.range.first; s <= a.range.last; ++s) {
        for (const int p : reads_[at(s)]) ++parameters_[at(p)].additions_left;
      }
    }
    if (!row_of(a.kind).places(Value::kParameters, Placement::kShard)) continue;
    for (int p = a.range.first; p <= a.range.last; ++p) parameters_[at(p)].dropped = true;
  }
}

Status StepWalk::next(const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  if (!values_.have(Value::kBatch) && !row.makes.has(Value::kBatch)) {
    return bad("comes before the batch is loaded");
  }
  if (agreed_) return bad("comes after the ranks have agreed on the end of the step");
  if (row.makes.has(Value::kUpdated)) STORMO_RETURN_IF_ERROR(gradients_complete(a));
  STORMO_RETURN_IF_ERROR(values_.next(a));
  if (row.micro_batch) return compute(a);
  if (row.places(Value::kGradients, Placement::kRemote)) return push(a);
  if (row.change) return row.change->of == Value::kGradients ? reduce(a) : change_parameters(a);
  if (row.needs.has(Value::kTerms)) return release(a);
  if (row.makes.has(Value::kUnused)) return find_unused();
  if (row.makes.has(Value::kUpdated)) return update(a);
  if (row.makes.has(Value::kNorm)) {
    STORMO_RETURN_IF_ERROR(all_final());
    return values_.check_owners(a, /*all=*/true);
  }
  return row.all_batches ? agree(a) : Status();
}

Status StepWalk::finish() const {
  STORMO_RETURN_IF_ERROR(all_is_done());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (parameters_[i].terms_held) {
      return bad("at the end the terms of a reduce_scatter of " + name(i) + " are there still");
    }
    for (std::size_t axis = 0; axis < at_rest(i).size(); ++axis) {
      if (one_rank(axis) || parameters_[i].weights[axis] == at_rest(i)[axis]) continue;
      if (on_servers(i, axis)) continue;  // a copy may stay: the servers have the parameters
      return bad("at the end " + placed(i, "weights", parameters_[i].weights, axis) +
                 "; the next step needs " + std::string(to_string(at_rest(i)[axis])));
    }
  }
  STORMO_RETURN_IF_ERROR(values_.complete());
  return agreed_ || !agrees() ? Status()
                              : bad("no action lets the ranks agree on the end of the step");
}

bool StepWalk::trains(int segment) const {
  return std::ranges::any_of(reads_[at(segment)],
                             [this](int p) { return shapes_[at(p)]->trainable; });
}

Status StepWalk::readable(int segment) const {
  for (const int p : reads_[at(segment)]) {
    const std::vector<Placement>& weights = parameters_[at(p)].weights;
    for (std::size_t axis = 0; axis < weights.size(); ++axis) {
      const bool own = weights[axis] == Placement::kDiverged && is_own(at(p), axis);
      if (own || weights[axis] == Placement::kReplicate || weights[axis] == Placement::kShared ||
          weights[axis] == Placement::kStaged || weights[axis] == Placement::kSplit) {
        continue;
      }
      if (one_rank(axis) && !on_servers(at(p), axis)) continue;
      return bad("needs the whole, but " + placed(at(p), "weights", weights, axis));
    }
  }
  return {};
}

/// No gradient goes further than to the first segment that trains.
Status StepWalk::compute(const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  STORMO_RETURN_IF_ERROR(micro_batches_.next(a));
  if (!row.needs.has(Value::kParameters)) return {};
  const int first = row.runs_forward() ? a.range.first : std::max(a.range.first, frozen_);
  for (int i = first; i <= a.range.last; ++i) {
    const int s = row.runs_forward() ? i : first + a.range.last - i;
    STORMO_RETURN_IF_ERROR(readable(s));
    if (!row.adds_gradients) continue;
    for (const int p : reads_[at(s)]) STORMO_RETURN_IF_ERROR(add_gradient(at(p)));
  }
  return {};
}

/// The action that ends what a step does with a gradient.
const char* StepWalk::ending() const {
  if (averages_on_servers(plan_)) return "average";
  return remote_ ? "push" : "update";
}

Status StepWalk::all_final() const {
  STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (shapes_[i]->trainable) STORMO_RETURN_IF_ERROR(final_gradients(i));
  }
  return {};
}

Status StepWalk::update(const Action& a) {
  STORMO_RETURN_IF_ERROR(values_.check_owners(a, /*all=*/false));
  return each(a, true, [&](std::size_t i, Parameter& p) {
    return remote_ ? update_copy(i, p) : update(i, p);
  });
}

Status StepWalk::update_copy(std::size_t i, Parameter& p) {
  STORMO_RETURN_IF_ERROR(final_gradients(i));
  return once(p.copy_updated, "updates a worker's copy a second time");
}

Status StepWalk::update(std::size_t i, Parameter& p) {
  if (p.updated) return bad("finds " + name(i) + " updated already");
  if (!p.has_gradients) return bad("finds no gradients of " + name(i));
  STORMO_RETURN_IF_ERROR(in_place(i));
  for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
    const bool cut = plan_.optimizer_state[axis] == Placement::kShard;
    const Placement gradients = p.gradients[axis];
    if (p.dropped && cut && !one_rank(axis) && p.weights[axis] == Placement::kReplicate) {
      return bad("needs parts, but " + placed(i, "weights", p.weights, axis));
    }
    if (gradients == Placement::kShard && !cut) {
      return bad("has all of the optimizer's state, but " + placed_gradients(i, axis));
    }
    if (gradients == Placement::kPartial && !one_rank(axis)) {
      const bool cuts_model =
          static_cast<int>(axis) == stage_axis_ || static_cast<int>(axis) == tensor_axis_;
      if (cut || cuts_model) return final_gradients(i);
      p.weights[axis] = Placement::kDiverged;
    } else if (cut) {
      p.weights[axis] = Placement::kShard;
    }
  }
  p.has_gradients = false;
  p.updated = true;
  return {};
}

/// Of a parameter with whose gradients nothing is done.
std::string StepWalk::not_done(std::size_t i) const {
  if (!remote_) return name(i) + " is never updated";
  const bool averages = averages_on_servers(plan_);
  return std::string("no action ") + (averages ? "averages " : "pushes the gradients of ") +
         name(i);
}

Status StepWalk::all_is_done() const {
  STORMO_RETURN_IF_ERROR(micro_batches_.complete());
  for (std::size_t i = 0; i < parameters_.size(); ++i) {
    if (shapes_[i]->trainable && !parameters_[i].updated) return bad(not_done(i));
    const bool tied = parameters_[i].averaged || parameters_[i].exchanged;
    if (is_diverged(plan_) && shapes_[i]->trainable && !tied) {
      return bad(std::string("no action ") + (has_centre(plan_) ? "exchanges " : "averages ") +
                 name(i) + ", which diverges");
    }
  }
  return {};
}

Status StepWalk::agree(const Action& a) {
  STORMO_RETURN_IF_ERROR(all_is_done());
  const bool any = plan_.chosen || longest_delay(plan_) > 0;  // it finishes all batches
  if (!any && a.every != std::max(every_, 1)) {
    return bad(every_ > 0 ? "comes in other steps than the averages"
                          : "has to come in every step, as steps do not overlap");
  }
  agreed_ = true;
  return {};
}

Status verify(const StepPlan& p) {
  STORMO_RETURN_IF_ERROR(plan::check(p));
  STORMO_RETURN_IF_ERROR(check_workers(p));
  StepWalk walk(p);
  for (const std::size_t i : order_of_batch(p)) {
    const Status st = walk.next(p.actions[i]);
    if (!st.ok()) return st.within(describe(p, i));
  }
  STORMO_RETURN_IF_ERROR(walk.finish());
  return check_overlap(p);
}

}  // namespace stormo::analysis
