#include <stormo/analysis/step/step_verify.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_factors.h>
#include <stormo/analysis/step/step_form.h>
#include <stormo/analysis/step/step_micro_batches.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;

Status bad(std::string message) { return Status(Code::kBadPlan, std::move(message)); }

std::size_t at(int index) { return static_cast<std::size_t>(index); }

/// What the walk knows of one parameter.
struct Parameter {
  std::vector<Placement> weights;    // by axis
  std::vector<Placement> gradients;  // by axis, if it has any
  bool has_gradients = false;
  std::vector<bool> read_by_peers;  // by axis: the ranks' terms may be read
  bool terms_held = false;          // those of a reduce_scatter
  bool dropped = false;             // some action drops the whole after use
  bool scattered = false;
  bool updated = false;
  bool averaged = false;
  bool exchanged = false;
  bool copy_updated = false;  // a worker's, of what is on servers
};

/// Walks the actions once.
class Walk {
 public:
  explicit Walk(const StepPlan& plan)
      : plan_(plan),
        shapes_(flatten(plan.model)),
        reads_(parameters_read(plan.model)),
        parameters_(shapes_.size()),
        micro_batches_(plan),
        factors_(plan),
        remote_(is_remote(plan)) {
    while (at(frozen_) < reads_.size() && !trains(frozen_)) ++frozen_;
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      parameters_[i].weights = at_rest(i);
      parameters_[i].read_by_peers.resize(plan.mesh.axes.size());
    }
    for (const Action& a : plan.actions) {
      if (a.kind != ActionKind::kReshard) continue;
      for (int p = a.range.first; p <= a.range.last; ++p) parameters_[at(p)].dropped = true;
    }
  }

  Status next(const Action& a) {
    if (a.kind != ActionKind::kLoad && !loaded_) return bad("comes before the batch is loaded");
    if (agreed_) return bad("comes after the ranks have agreed on the end of the step");
    switch (a.kind) {
      case ActionKind::kLoad: return once(loaded_, "loads the batch a second time");
      case ActionKind::kCount: return once(counted_, "counts a second time");
      case ActionKind::kForward:
        STORMO_RETURN_IF_ERROR(micro_batches_.forward(a));
        return readable(a.range);
      case ActionKind::kLoss: return micro_batches_.loss(a);
      case ActionKind::kRecompute:
        STORMO_RETURN_IF_ERROR(micro_batches_.recompute(a));
        return readable(a.range);
      case ActionKind::kBackward: return backward(a);
      case ActionKind::kAllGather: return all_gather(a);
      case ActionKind::kReshard: return reshard(a);
      case ActionKind::kAllReduce: return all_reduce(a);
      case ActionKind::kReduceScatter: return reduce_scatter(a);
      case ActionKind::kReleaseGradients: return release_gradients(a);
      case ActionKind::kFindUnused: return find_unused();
      case ActionKind::kShareGradients: return share_gradients(a);
      case ActionKind::kShareParameters: return share_parameters(a);
      case ActionKind::kPull: return pull(a);
      case ActionKind::kPush: return push(a);
      case ActionKind::kAverage: return average(a);
      case ActionKind::kExchange: return exchange(a);
      case ActionKind::kNorm: return norm(a);
      case ActionKind::kUnscale: return factors_.unscale();
      case ActionKind::kClip: return factors_.clip();
      case ActionKind::kUpdate: return update(a);
      case ActionKind::kAgree: return agree(a);
    }
    return bad("is of no known kind");
  }

  Status finish() const {
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
    if (counted_ && !weights_used_) return bad("the weights are counted, but nothing needs them");
    return agreed_ || has_servers(plan_)
               ? Status()
               : bad("no action lets the ranks agree on the end of the step");
  }

 private:
  const std::vector<Placement>& at_rest(std::size_t parameter) const {
    return shapes_[parameter]->trainable ? plan_.parameters : plan_.frozen;
  }

  /// Whether the parameter itself lies on servers.
  bool on_servers(std::size_t parameter, std::size_t axis) const {
    return at_rest(parameter)[axis] == Placement::kRemote;
  }
  bool diverges(std::size_t parameter, std::size_t axis) const {
    return at_rest(parameter)[axis] == Placement::kDiverged;
  }
  /// Whether each rank computes with values of its own.
  bool is_own(std::size_t parameter, std::size_t axis) const {
    return on_servers(parameter, axis) || diverges(parameter, axis);
  }

  // --- names ---------------------------------------------------------------------------------
  bool one_rank(std::size_t axis) const { return plan_.mesh.axes[axis].size == 1; }
  std::string name(std::size_t parameter) const {
    return "parameter " + std::to_string(parameter) + " (" + shapes_[parameter]->name + ")";
  }
  /// "the gradients of parameter 3 (fc2.weight) are partial over dp"
  std::string placed(std::size_t parameter, const char* what, const std::vector<Placement>& on,
                     std::size_t axis) const {
    return std::string("the ") + what + " of " + name(parameter) + " are " +
           std::string(to_string(on[axis])) + " over " + plan_.mesh.axes[axis].name;
  }

  std::vector<std::size_t> axes_of(const Action& a) const {
    std::vector<std::size_t> out;
    for (const std::string& axis : a.axes) out.push_back(at(plan_.mesh.find(axis)));
    return out;
  }
  /// Calls f(parameter index, Parameter&) for the range.
  template <class Function>
  Status each(const Action& a, bool trainable_only, const Function& f) {
    for (int i = a.range.first; i <= a.range.last; ++i) {
      if (trainable_only && !shapes_[at(i)]->trainable) continue;
      STORMO_RETURN_IF_ERROR(f(at(i), parameters_[at(i)]));
    }
    return {};
  }
  static Status once(bool& done, const char* again) {
    return std::exchange(done, true) ? bad(again) : Status();
  }

  // --- computations --------------------------------------------------------------------------
  bool trains(int segment) const {
    return std::ranges::any_of(reads_[at(segment)],
                               [this](int p) { return shapes_[at(p)]->trainable; });
  }

  Status readable(int segment) const {
    for (const int p : reads_[at(segment)]) {
      const std::vector<Placement>& weights = parameters_[at(p)].weights;
      for (std::size_t axis = 0; axis < weights.size(); ++axis) {
        const bool own = weights[axis] == Placement::kDiverged && is_own(at(p), axis);
        if (own || weights[axis] == Placement::kReplicate || weights[axis] == Placement::kShared) {
          continue;
        }
        if (one_rank(axis) && !on_servers(at(p), axis)) continue;
        return bad("needs the whole, but " + placed(at(p), "weights", weights, axis));
      }
    }
    return {};
  }

  Status readable(plan::Range segments) const {
    for (int s = segments.first; s <= segments.last; ++s) STORMO_RETURN_IF_ERROR(readable(s));
    return {};
  }

  Status backward(const Action& a) {
    STORMO_RETURN_IF_ERROR(micro_batches_.backward(a));
    for (int s = a.range.last; s >= std::max(a.range.first, frozen_); --s) {
      STORMO_RETURN_IF_ERROR(readable(s));
      for (const int p : reads_[at(s)]) STORMO_RETURN_IF_ERROR(add_gradient(at(p)));
    }
    return {};
  }

  Status add_gradient(std::size_t i) {
    Parameter& p = parameters_[i];
    if (!shapes_[i]->trainable) return {};
    if (p.updated) return bad("adds to the gradients of " + name(i) + " after its " + ending());
    if (p.exchanged) return bad("adds to the gradients of " + name(i) + " after its exchange");
    for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
      if (p.gradients[axis] != Placement::kPartial) {
        return bad("adds to gradients that are reduced: " +
                   placed(i, "gradients", p.gradients, axis));
      }
      if (p.read_by_peers[axis]) {
        return bad("adds to gradients of " + name(i) + " that others read already");
      }
    }
    p.gradients.assign(plan_.mesh.axes.size(), Placement::kPartial);
    p.has_gradients = true;
    return {};
  }

  // --- parameters ----------------------------------------------------------------------------
  Status all_gather(const Action& a) {
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

  Status reshard(const Action& a) {
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

  Status share_parameters(const Action& a) {
    const std::size_t axis = axes_of(a).front();
    return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
      if (plan_.parameters[axis] != Placement::kShared || p.weights[axis] != Placement::kShard) {
        return bad("needs updated parts of one copy, but " + placed(i, "weights", p.weights, axis));
      }
      p.weights[axis] = Placement::kShared;
      return {};
    });
  }

  // --- parameters on servers -----------------------------------------------------------------
  Status pull(const Action& a) {
    const std::size_t axis = axes_of(a).front();
    return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
      if (p.weights[axis] != Placement::kRemote) return bad("pulls " + name(i) + " a second time");
      p.weights[axis] = Placement::kDiverged;
      return {};
    });
  }

  Status push(const Action& a) {
    STORMO_RETURN_IF_ERROR(factors_.update());
    return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
      if (p.updated) return bad("pushes gradients of " + name(i) + " a second time");
      if (p.copy_updated != has_worker_copies(plan_)) {
        return bad("comes before the update of the worker's copy of " + name(i));
      }
      if (!p.has_gradients) return bad("finds no gradients of " + name(i));
      p.has_gradients = false;
      p.updated = true;
      return {};
    });
  }

  // --- parameters that diverge ---------------------------------------------------------------
  Status average(const Action& a) {
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
  Status exchange(const Action& a) {
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

  // --- gradients -----------------------------------------------------------------------------
  Status reduce(const Action& a, Placement becomes) {
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

  Status all_reduce(const Action& a) {
    if (a.asynchronous && !counted_) return bad("comes before the weights are counted");
    weights_used_ = weights_used_ || a.asynchronous;
    return reduce(a, Placement::kReplicate);
  }

  Status reduce_scatter(const Action& a) {
    if (!counted_) return bad("comes before the weights are counted");
    weights_used_ = true;
    STORMO_RETURN_IF_ERROR(reduce(a, Placement::kShard));
    return each(a, true, [](std::size_t, Parameter& p) -> Status {
      p.terms_held = p.scattered = true;
      return {};
    });
  }

  Status release_gradients(const Action& a) {
    return each(a, true, [&](std::size_t i, Parameter& p) -> Status {
      return std::exchange(p.terms_held, false)
                 ? Status()
                 : bad("finds no terms of a reduce_scatter of " + name(i));
    });
  }

  Status find_unused() {
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      for (std::size_t axis = 0; axis < parameters_[i].gradients.size(); ++axis) {
        if (one_rank(axis) || parameters_[i].gradients[axis] != Placement::kPartial) continue;
        return bad("needs reduced gradients, but " +
                   placed(i, "gradients", parameters_[i].gradients, axis));
      }
    }
    STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
    return once(unused_found_, "looks for unused gradients a second time");
  }

  Status share_gradients(const Action& a) {
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

  /// Nowhere partial, but where the owner of a part reads the terms, or each worker has its own.
  Status final_gradients(std::size_t i) const {
    const Parameter& p = parameters_[i];
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    if (p.scattered && !unused_found_) {
      return bad("comes before find_unused, and gradients of " + name(i) + " are in parts");
    }
    for (std::size_t axis = 0; axis < p.gradients.size(); ++axis) {
      if (one_rank(axis) || p.gradients[axis] != Placement::kPartial || p.read_by_peers[axis] ||
          is_own(i, axis)) {
        continue;
      }
      return bad("needs reduced gradients, but " + placed(i, "gradients", p.gradients, axis));
    }
    return {};
  }

  // --- the update ----------------------------------------------------------------------------
  /// The action that ends what a step does with a gradient.
  const char* ending() const { return remote_ ? "push" : "update"; }

  Status norm(const Action& a) {
    STORMO_RETURN_IF_ERROR(factors_.norm());
    STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (shapes_[i]->trainable) STORMO_RETURN_IF_ERROR(final_gradients(i));
    }
    return factors_.check_owners(a, /*all=*/true);
  }

  Status update(const Action& a) {
    STORMO_RETURN_IF_ERROR(micro_batches_.all_computed());
    STORMO_RETURN_IF_ERROR(factors_.update());
    STORMO_RETURN_IF_ERROR(factors_.check_owners(a, /*all=*/false));
    return each(a, true, [&](std::size_t i, Parameter& p) {
      return remote_ ? update_copy(i, p) : update(i, p);
    });
  }

  Status update_copy(std::size_t i, Parameter& p) {
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    return once(p.copy_updated, "updates a worker's copy a second time");
  }

  Status update(std::size_t i, Parameter& p) {
    if (p.updated) return bad("finds " + name(i) + " updated already");
    if (!p.has_gradients) return bad("finds no gradients of " + name(i));
    if (p.scattered && !unused_found_) return final_gradients(i);
    for (std::size_t axis = 0; axis < p.weights.size(); ++axis) {
      const bool cut = plan_.optimizer_state[axis] == Placement::kShard;
      const Placement gradients = p.gradients[axis];
      if (p.dropped && cut && !one_rank(axis) && p.weights[axis] == Placement::kReplicate) {
        return bad("needs parts, but " + placed(i, "weights", p.weights, axis));
      }
      if (gradients == Placement::kShard && !cut) {
        return bad("has all of the optimizer's state, but " +
                   placed(i, "gradients", p.gradients, axis));
      }
      if (gradients == Placement::kPartial && !one_rank(axis) && !p.read_by_peers[axis]) {
        if (cut) return final_gradients(i);
        p.weights[axis] = Placement::kDiverged;
      } else if (cut) {
        p.weights[axis] = Placement::kShard;
      }
    }
    p.has_gradients = false;
    p.updated = true;
    return {};
  }

  Status all_is_done() const {
    STORMO_RETURN_IF_ERROR(micro_batches_.complete());
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      if (shapes_[i]->trainable && !parameters_[i].updated)
        return bad(remote_ ? "no action pushes the gradients of " + name(i)
                           : name(i) + " is never updated");
      const bool tied = parameters_[i].averaged || parameters_[i].exchanged;
      if (is_diverged(plan_) && shapes_[i]->trainable && !tied) {
        return bad(std::string("no action ") + (has_centre(plan_) ? "exchanges " : "averages ") +
                   name(i) + ", which diverges");
      }
    }
    return {};
  }

  Status agree(const Action& a) {
    STORMO_RETURN_IF_ERROR(all_is_done());
    if (a.every != std::max(every_, 1)) return bad("comes in other steps than the averages");
    agreed_ = true;
    return {};
  }

  const StepPlan& plan_;
  std::vector<const plan::ParameterShape*> shapes_;
  std::vector<std::vector<int>> reads_;  // by segment
  std::vector<Parameter> parameters_;
  MicroBatches micro_batches_;
  GradientFactors factors_;
  bool remote_;     // the parameters are on servers
  int every_ = 0;   // steps from one average to the next
  int frozen_ = 0;  // segments before the first that any gradient reaches
  bool loaded_ = false, counted_ = false, weights_used_ = false, unused_found_ = false;
  bool agreed_ = false;
};

}  // namespace

Status verify(const StepPlan& p) {
  STORMO_RETURN_IF_ERROR(check_form(p));
  Walk walk(p);
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    const Status st = walk.next(p.actions[i]);
    if (!st.ok()) return st.within(describe(p, i));
  }
  return walk.finish();
}

}  // namespace stormo::analysis
