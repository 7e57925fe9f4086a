#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include <stormo/analysis/verify/step_micro_batches.h>
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
  using Placements = std::vector<plan::Placement>;  // by axis
  struct Parameter {
    int number;
    const plan::ParameterShape* shape;
    const Placements* at_rest;  // between steps
    Placements weights;
    Placements gradients;  // if it has any; shared: terms that the others may read
    bool has_gradients = false;
    int additions_left = 0;   // backwards that will add to the gradients
    bool terms_held = false;  // those of a reduce_scatter
    bool dropped = false;     // some action drops the whole after use
    bool scattered = false;
    bool updated = false;
    bool averaged_some = false;  // by some of the ranks
    bool averaged = false;
    int averaged_at = 0;     // offset in the period
    bool averaging = false;  // on its way, to an outer update
    bool encoded = false;    // so that only an outer update can take it
    bool mixing = false;     // on its way, to the update
    bool tracked = false;    // its gradients are an estimate of their mean
    bool outer_updated = false;
    bool sent = false;  // to other members of a population
    bool exchanged = false;
    bool copy_updated = false;         // a worker's, of what is on servers
    std::uint32_t averaged_slots = 0;  // of the optimizer, by bit

    /// "parameter 3 (fc2.weight)"
    std::string name() const;
    /// Whether the parameter itself lies on servers.
    bool on_servers(std::size_t axis) const { return (*at_rest)[axis] == plan::Placement::kRemote; }
    /// Whether each rank computes with values of its own.
    bool is_own(std::size_t axis) const {
      return on_servers(axis) || (*at_rest)[axis] == plan::Placement::kDiverged;
    }
  };

  bool one_rank(std::size_t axis) const { return plan_.mesh.axes[axis].size == 1; }
  /// Whether the model is cut over it.
  bool cuts_model(std::size_t axis) const;
  /// Whether a worker of servers is several ranks.
  bool has_worker_ranks() const { return plan_.mesh.find(plan::kWorkerAxis) >= 0; }
  std::vector<std::size_t> axes_of(const plan::Action& a) const;
  /// "the gradients of parameter 3 (fc2.weight) are partial over dp"
  std::string placed(const Parameter& p, const char* what, plan::Placement now,
                     std::size_t axis) const;
  std::string placed_gradients(const Parameter& p, std::size_t axis) const;
  /// Calls f(Parameter&) for those of the range that are trained.
  template <class Function>
  Status each(const plan::Action& a, const Function& f) {
    for (int i = a.range.first; i <= a.range.last; ++i) {
      Parameter& p = parameters_[static_cast<std::size_t>(i)];
      if (p.shape->trainable) STORMO_RETURN_IF_ERROR(f(p));
    }
    return {};
  }

  // step_walk.cc
  bool trains(int segment) const;
  Status use_values(const plan::Action& a);
  Status compute(const plan::Action& a);
  Status readable(int segment) const;
  Status check_owners(const plan::Action& a, bool all) const;
  Status update(const plan::Action& a);
  Status commit() const;
  Status all_is_done() const;
  Status agree(const plan::Action& a);

  // step_walk_changes.cc
  Status change_parameters(const plan::Action& a);
  Status place(const plan::Change& change, std::size_t axis, Parameter& p);
  Status pull(const plan::Action& a);
  Status change_diverged(const plan::Action& a);
  Status check_own(const plan::Action& a, const Parameter& p, bool averages) const;
  Status average_slot(const plan::Action& a);
  Status average_some(const plan::Action& a);
  Status mix(const plan::Action& a, Parameter& p) const;
  static Status meet(Parameter& p);
  Status track(const plan::Action& a);
  Status outer_update(const plan::Action& a);
  Status add_gradient(Parameter& p);
  Status gradients_complete(const plan::Action& a);
  Status has_terms(const Parameter& p, const std::vector<std::size_t>& axes,
                   plan::Placement to) const;
  Status reduce(const plan::Action& a);
  Status push(const plan::Action& a);
  Status find_unused() const;
  Status has_gradients(const Parameter& p, bool whole) const;
  Status final_gradients(const Parameter& p) const;

  const plan::StepPlan& plan_;
  std::vector<std::vector<int>> reads_;  // by segment
  std::vector<Parameter> parameters_;
  MicroBatches micro_batches_;
  plan::Stages stages_;
  int stage_axis_;     // -1: no pipeline
  int tensor_axis_;    // -1: each layer is computed by one rank
  bool remote_;        // the parameters are on servers
  int every_ = 0;      // steps from one average to the next
  int frozen_ = 0;     // segments before the first that any gradient reaches
  plan::Values made_;  // of those of which a step has one
  bool factors_used_ = false, weights_used_ = false, agreed_ = false;
  bool has_outer_updates_ = false;
  std::uint32_t slots_ = 0;  // of the optimizer, by bit, that have averages of their own
};

}  // namespace stormo::analysis
