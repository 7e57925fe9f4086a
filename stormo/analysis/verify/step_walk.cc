#include <stormo/analysis/verify/step_walk.h>

#include <algorithm>
#include <array>
#include <utility>

#include <stormo/base/index.h>
#include <stormo/plan/bad_plan.h>

namespace stormo::analysis {

using plan::Action;
using plan::bad;
using plan::Placement;
using plan::StepPlan;
using plan::Value;

namespace {

struct OneOfStep {
  Value value;
  const char* missing;
  const char* again;
  const char* unwanted = nullptr;  // of a factor
};
// in the order in which they are made
constexpr std::array<OneOfStep, 8> kOnes = {{
    {Value::kBatch, "comes before the batch is loaded", "loads the batch a second time"},
    {Value::kChosen, "comes before the parts that the step trains are chosen",
     "chooses a second time", "chooses, but the step says nothing of it"},
    {Value::kWeights, "comes before the weights are added up", "adds up the weights a second time"},
    {Value::kUnused, "comes before find_unused", "looks for unused gradients a second time"},
    {Value::kNorm, "comes before the norm", "computes the norm a second time",
     "computes a norm that nothing needs"},
    {Value::kUnscaled, "comes before the scale of the loss is undone",
     "undoes the scale of the loss a second time", "finds no scale of the loss"},
    {Value::kClipped, "comes before the gradients are clipped", "clips a second time",
     "clips, but the step says nothing of it"},
    {Value::kCommitted, "comes before the step is committed", "commits a second time",
     "commits, but the step says nothing of it"},
}};

bool is_wanted(const StepPlan& p, Value value) {
  return (value != Value::kUnscaled || p.scaled_loss) && (value != Value::kClipped || p.clipped) &&
         (value != Value::kNorm || p.scaled_loss || p.clipped) &&
         (value != Value::kCommitted || p.commits) && (value != Value::kChosen || p.chosen);
}

}  // namespace

StepWalk::StepWalk(const StepPlan& plan)
    : plan_(plan),
      reads_(parameters_read(plan.model)),
      micro_batches_(plan),
      stages_(plan.model),
      stage_axis_(plan.mesh.find(plan::kStageAxis)),
      tensor_axis_(plan.mesh.find(plan::kTensorAxis)),
      remote_(is_remote(plan)) {
  for (const plan::ParameterShape* shape : flatten(plan.model)) {
    const Placements& at_rest = shape->trainable ? plan.parameters : plan.frozen;
    parameters_.push_back({static_cast<int>(parameters_.size()), shape, &at_rest, at_rest});
  }
  while (at(frozen_) < reads_.size() && !trains(frozen_)) ++frozen_;
  for (const Action& a : plan.actions) {
    const plan::ActionRow& row = row_of(a.kind);
    const bool drops = row.places(Value::kParameters, Placement::kShard);
    has_outer_updates_ = has_outer_updates_ || row.outer_updates();
    if (row.averages_slot) slots_ |= 1u << a.slot;
    for (int i = a.range.first; i <= a.range.last; ++i) {
      if (drops) parameters_[at(i)].dropped = true;
      if (!row.adds_gradients) continue;
      for (const int p : reads_[at(i)]) ++parameters_[at(p)].additions_left;
    }
  }
}

Status StepWalk::next(const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  if (!made_.has(Value::kBatch) && !row.makes.has(Value::kBatch)) {
    return bad("comes before the batch is loaded");
  }
  if (agreed_) return bad("comes after the ranks have agreed on the end of the step");
  if (row.makes.has(Value::kUpdated)) STORMO_RETURN_IF_ERROR(gradients_complete(a));
  STORMO_RETURN_IF_ERROR(use_values(a));
  if (row.micro_batch) return compute(a);
  if (row.change) return row.change->of == Value::kGradients ? reduce(a) : change_parameters(a);
  if (row.averages_slot) return average_slot(a);
  if (row.needs.has(Value::kTerms)) {
    return each(a, [](Parameter& p) {
      return std::exchange(p.terms_held, false)
                 ? Status()
                 : bad("finds no terms of a reduce_scatter of ", p.name());
    });
  }
  if (row.makes.has(Value::kUnused)) return find_unused();
  if (row.makes.has(Value::kUpdated)) return update(a);
  if (row.makes.has(Value::kNorm)) {
    STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
    for (const Parameter& p : parameters_) STORMO_RETURN_IF_ERROR(final_gradients(p));
    return check_owners(a, /*all=*/true);
  }
  if (row.makes.has(Value::kCommitted)) return commit();
  return row.all_batches ? agree(a) : Status();
}

/// Of those of which a step has one. The factors of gradients are all made before the first use.
Status StepWalk::use_values(const Action& a) {
  const plan::ActionRow& row = row_of(a.kind);
  plan::Values needs = row.needs;
  const bool averages = row.places(Value::kGradients, Placement::kReplicate);
  const bool sums = averages || row.places(Value::kGradients, Placement::kRemote);
  if ((averages && a.asynchronous && !plan_.chosen) || (sums && has_worker_ranks()))
    needs.add(Value::kWeights);
  for (const OneOfStep& v : kOnes) {
    if (v.unwanted == nullptr || !row.makes.has(v.value)) continue;
    if (factors_used_) return bad("comes after ", remote_ ? "a push" : "an update");
    if (!is_wanted(plan_, v.value)) return bad(v.unwanted);
  }
  for (const OneOfStep& v : kOnes) {
    const bool made = made_.has(v.value);
    if (needs.has(v.value) && is_wanted(plan_, v.value) && !made) return bad(v.missing);
    if (!row.makes.has(v.value)) continue;
    if (v.value == Value::kUnscaled && made_.has(Value::kClipped)) {
      return bad("comes after the norm was clipped");
    }
    if (made) return bad(v.again);
    made_.add(v.value);
  }
  if (needs.has(Value::kWeights)) weights_used_ = true;
  if (needs.has(Value::kUnscaled) && needs.has(Value::kClipped)) factors_used_ = true;
  return {};
}

bool StepWalk::trains(int segment) const {
  return std::ranges::any_of(reads_[at(segment)],
                             [this](int p) { return parameters_[at(p)].shape->trainable; });
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
    for (const int p : reads_[at(s)]) STORMO_RETURN_IF_ERROR(add_gradient(parameters_[at(p)]));
  }
  return {};
}

Status StepWalk::readable(int segment) const {
  for (const int number : reads_[at(segment)]) {
    const Parameter& p = parameters_[at(number)];
    for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
      const Placement now = p.weights[axis];
      const bool in_part = now == Placement::kShard || now == Placement::kRemote ||
                           (now == Placement::kDiverged && !p.is_own(axis));
      if (!in_part || (one_rank(axis) && !p.on_servers(axis))) continue;
      return bad("needs the whole, but ", placed(p, "weights", p.weights[axis], axis));
    }
  }
  return {};
}

/// Of a norm or an update: its axes are some on which the optimizer's state is cut; `all`: all.
Status StepWalk::check_owners(const Action& a, bool all) const {
  for (std::size_t axis = 0; axis < plan_.mesh.axes.size(); ++axis) {
    const std::string& name = plan_.mesh.axes[axis].name;
    const Placement state = plan_.optimizer_state[axis];
    // a stage has whole parameters, but not all of them
    const bool cut = state == Placement::kShard || state == Placement::kSplit ||
                     (all && state == Placement::kStaged);
    const bool named = std::ranges::count(a.axes, name) > 0;
    if (named && !cut) return bad("adds up what all ranks of ", name, " have");
    const bool adds_up = all || !a.axes.empty();  // an update may need no sums
    if (!adds_up || !cut || named || one_rank(axis)) continue;
    return bad("leaves out the parts of other ranks of ", name);
  }
  return {};
}

Status StepWalk::update(const Action& a) {
  STORMO_RETURN_IF_ERROR(check_owners(a, /*all=*/false));
  return each(a, [this](Parameter& p) -> Status {
    if (remote_) {
      STORMO_RETURN_IF_ERROR(final_gradients(p));
      return std::exchange(p.copy_updated, true) ? bad("updates a worker's copy a second time")
                                                 : Status();
    }
    if (p.updated) return bad("finds ", p.name(), " updated already");
    STORMO_RETURN_IF_ERROR(has_gradients(p, /*whole=*/true));
    for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
      const bool cut = plan_.optimizer_state[axis] == Placement::kShard;
      const bool partial = p.gradients[axis] == Placement::kPartial && !one_rank(axis);
      if (p.dropped && cut && !one_rank(axis) && p.weights[axis] == Placement::kReplicate) {
        return bad("needs parts, but ", placed(p, "weights", p.weights[axis], axis));
      }
      if (p.gradients[axis] == Placement::kShard && !cut) {
        return bad("has all of the optimizer's state, but ", placed_gradients(p, axis));
      }
      if (partial && (cut || cuts_model(axis))) return final_gradients(p);
      if (partial) {
        p.weights[axis] = Placement::kDiverged;
      } else if (cut) {
        p.weights[axis] = Placement::kShard;
      }
    }
    p.has_gradients = p.mixing = false;
    p.updated = true;
    return {};
  });
}

/// Each rank has what it needs to update what it owns, and nothing more to hear from others.
Status StepWalk::commit() const {
  STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
  for (const Parameter& p : parameters_) {
    if (!p.shape->trainable) continue;
    STORMO_RETURN_IF_ERROR(has_gradients(p, /*whole=*/true));
    STORMO_RETURN_IF_ERROR(final_gradients(p));
  }
  return {};
}

Status StepWalk::all_is_done() const {
  STORMO_RETURN_IF_ERROR(micro_batches_.complete());
  for (const Parameter& p : parameters_) {
    if (!p.shape->trainable) continue;
    if (!p.updated && !remote_) return bad(p.name(), " is never updated");
    if (!p.updated) {
      return bad("no action ",
                 averages_on_servers(plan_) ? "averages " : "pushes the gradients of ", p.name());
    }
    if ((has_outer_updates_ || p.averaging || p.encoded) && !p.outer_updated) {
      return bad("no outer_update is of ", p.name());
    }
    if ((slots_ & ~p.averaged_slots) != 0) {
      return bad("a slot of the optimizer is averaged, but not that of ", p.name());
    }
    if (!is_diverged(plan_) || p.averaged || p.sent || p.exchanged) continue;
    return bad("no action ", has_centre(plan_) ? "exchanges " : "averages ", p.name(),
               ", which diverges");
  }
  return {};
}

Status StepWalk::agree(const Action& a) {
  STORMO_RETURN_IF_ERROR(all_is_done());
  agreed_ = true;
  for (const Action& other : plan_.actions) {
    if (row_of(other.kind).averages_slot && other.every % a.every != 0) {
      return bad("comes in other steps than the averages of slot ", other.slot,
                 " of the optimizer, which are for every ", other.every, " steps");
    }
    if (averages_some(plan_, other) && a.every % other.every != 0) {
      return bad("comes in other steps than the averages among some ranks, which are for every ",
                 other.every, " steps");
    }
  }
  // where steps overlap it finishes all batches
  if (plan_.chosen || longest_delay(plan_) > 0 || a.every == std::max(every_, 1)) return {};
  return bad(is_population(plan_) ? "comes in other steps than those in which members meet"
             : every_ > 0         ? "comes in other steps than the averages"
                                  : "has to come in every step, as steps do not overlap");
}

Status StepWalk::finish() const {
  STORMO_RETURN_IF_ERROR(all_is_done());
  for (const Parameter& p : parameters_) {
    if (p.terms_held) {
      return bad("at the end the terms of a reduce_scatter of ", p.name(), " are there still");
    }
    for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
      const Placement rest = (*p.at_rest)[axis];
      // a copy may stay: the servers have the parameters
      if (one_rank(axis) || p.weights[axis] == rest || p.on_servers(axis)) continue;
      return bad("at the end ", placed(p, "weights", p.weights[axis], axis),
                 "; the next step needs ", rest);
    }
  }
  if (made_.has(Value::kWeights) && !weights_used_) {
    return bad("the weights are added up, but nothing needs them");
  }
  // workers of one rank do not
  const bool alone = has_servers(plan_) && !has_worker_ranks() && model_axes(plan_.mesh).empty();
  return agreed_ || alone ? Status() : bad("no action lets the ranks agree on the end of the step");
}

// --- names ---------------------------------------------------------------------------------------

std::string StepWalk::Parameter::name() const {
  return plan::text_of("parameter ", number, " (", shape->name, ")");
}

std::string StepWalk::placed(const Parameter& p, const char* what, Placement now,
                             std::size_t axis) const {
  return plan::text_of("the ", what, " of ", p.name(), " are ", now, " over ",
                       plan_.mesh.axes[axis].name);
}

std::string StepWalk::placed_gradients(const Parameter& p, std::size_t axis) const {
  const bool read = p.gradients[axis] == Placement::kShared;
  return placed(p, "gradients", read ? Placement::kPartial : p.gradients[axis], axis) +
         (read ? ", and read by others" : "");
}

bool StepWalk::cuts_model(std::size_t axis) const {
  return static_cast<int>(axis) == stage_axis_ || static_cast<int>(axis) == tensor_axis_;
}

std::vector<std::size_t> StepWalk::axes_of(const Action& a) const {
  std::vector<std::size_t> out;
  for (const std::string& axis : a.axes) out.push_back(at(plan_.mesh.find(axis)));
  return out;
}

}  // namespace stormo::analysis
