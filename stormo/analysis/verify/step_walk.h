#pragma once

#include <cstddef>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/verify/step_micro_batches.h>
#include <stormo/analysis/verify/step_values.h>
#include <stormo/base/status.h>
#include <stormo/plan/project.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Walks the actions of a plan once, and knows where each value is; see verify(). The functions
/// take an action that passes plan::check(), and return kBadPlan where it does not find what it
/// needs.
class StepWalk {
 public:
  /// `plan` is borrowed.
  explicit StepWalk(const plan::StepPlan& plan);

  /// The next action.
  Status next(const plan::Action& a);
  /// After the last action.
  Status finish() const;

 private:
  static Status bad(std::string message) { return Status(Code::kBadPlan, std::move(message)); }
  static std::size_t at(int index) { return static_cast<std::size_t>(index); }

  /// What the walk knows of one parameter.
  struct Parameter {
    std::vector<plan::Placement> weights;  // by axis
    // by axis, if it has any; shared: terms that the others may read
    std::vector<plan::Placement> gradients;
    bool has_gradients = false;
    int additions_left = 0;   // backwards that will add to the gradients
    bool terms_held = false;  // those of a reduce_scatter
    bool dropped = false;     // some action drops the whole after use
    bool scattered = false;
    bool updated = false;
    bool averaged = false;
    bool exchanged = false;
    bool copy_updated = false;  // a worker's, of what is on servers
  };

  const std::vector<plan::Placement>& at_rest(std::size_t parameter) const {
    return shapes_[parameter]->trainable ? plan_.parameters : plan_.frozen;
  }

  /// Whether the parameter itself lies on servers.
  bool on_servers(std::size_t parameter, std::size_t axis) const {
    return at_rest(parameter)[axis] == plan::Placement::kRemote;
  }
  /// Whether each rank computes with values of its own.
  bool is_own(std::size_t parameter, std::size_t axis) const {
    return on_servers(parameter, axis) || at_rest(parameter)[axis] == plan::Placement::kDiverged;
  }

  /// Whether a worker of servers is several ranks.
  bool has_worker_ranks() const { return plan_.mesh.find(plan::kWorkerAxis) >= 0; }
  /// Whether ranks agree on the end of the step: not workers of one rank.
  bool agrees() const {
    return !has_servers(plan_) || has_worker_ranks() || !model_axes(plan_.mesh).empty();
  }

  // --- names ---------------------------------------------------------------------------------
  bool one_rank(std::size_t axis) const { return plan_.mesh.axes[axis].size == 1; }
  std::string name(std::size_t parameter) const {
    return "parameter " + std::to_string(parameter) + " (" + shapes_[parameter]->name + ")";
  }
  /// "the gradients of parameter 3 (fc2.weight) are partial over dp"
  std::string placed(std::size_t parameter, const char* what,
                     const std::vector<plan::Placement>& on, std::size_t axis) const {
    return std::string("the ") + what + " of " + name(parameter) + " are " +
           std::string(to_string(on[axis])) + " over " + plan_.mesh.axes[axis].name;
  }
  std::string placed_gradients(std::size_t parameter, std::size_t axis) const {
    std::vector<plan::Placement> terms = parameters_[parameter].gradients;
    const bool read = terms[axis] == plan::Placement::kShared;
    if (read) terms[axis] = plan::Placement::kPartial;
    return placed(parameter, "gradients", terms, axis) + (read ? ", and read by others" : "");
  }

  std::vector<std::size_t> axes_of(const plan::Action& a) const {
    std::vector<std::size_t> out;
    for (const std::string& axis : a.axes) out.push_back(at(plan_.mesh.find(axis)));
    return out;
  }
  /// Calls f(parameter index, Parameter&) for the range.
  template <class Function>
  Status each(const plan::Action& a, bool trainable_only, const Function& f) {
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
  bool trains(int segment) const;
  Status compute(const plan::Action& a);
  Status readable(int segment) const;

  // --- parameters, see step_walk_parameters.cc -------------------------------------------------
  Status change_parameters(const plan::Action& a);
  Status place(const plan::Change& change, std::size_t axis, std::size_t i, Parameter& p);
  Status pull(const plan::Action& a);
  Status bring_together(const plan::Action& a);

  // --- gradients, see step_walk_gradients.cc --------------------------------------------------
  Status add_gradient(std::size_t i);
  Status gradients_complete(const plan::Action& a) const;
  Status has_terms_over(const std::vector<std::size_t>& axes, std::size_t i,
                        plan::Placement to) const;
  Status reduce(const plan::Action& a);
  Status release(const plan::Action& a);
  Status find_unused() const;
  Status push(const plan::Action& a);
  Status in_place(std::size_t i) const;
  Status final_gradients(std::size_t i) const;

  // --- the update ----------------------------------------------------------------------------
  const char* ending() const;
  std::string not_done(std::size_t i) const;
  Status all_final() const;
  Status update(const plan::Action& a);
  Status update_copy(std::size_t i, Parameter& p);
  Status update(std::size_t i, Parameter& p);
  Status all_is_done() const;
  Status agree(const plan::Action& a);

  const plan::StepPlan& plan_;
  std::vector<const plan::ParameterShape*> shapes_;
  std::vector<std::vector<int>> reads_;  // by segment
  std::vector<Parameter> parameters_;
  MicroBatches micro_batches_;
  StepValues values_;
  plan::Stages stages_;
  int stage_axis_;   // -1: no pipeline
  int tensor_axis_;  // -1: each layer is computed by one rank
  bool remote_;      // the parameters are on servers
  int every_ = 0;    // steps from one average to the next
  int frozen_ = 0;   // segments before the first that any gradient reaches
  bool agreed_ = false;
};

}  // namespace stormo::analysis
