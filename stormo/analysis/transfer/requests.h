#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// The collectives that one rank asks its communicators for by action number `action` of its part
/// of a verified plan (plan::project), in order, in the form of libtorch training here: parts lie
/// in flat buffers (plan/flat_buffer.h), and replicas average all gradients of a type at once,
/// those first that backward computes first. How many rows of sparse tables travel no plan knows:
/// they are left out. None over one rank. Without the pull of a later stage, see PartOfModel.
std::vector<Collective> requests_of(const plan::StepPlan& own, std::size_t action,
                                    const StepSizes& sizes);

/// What some ranks have of a model, see plan::model_of().
struct PartOfModel {
  const plan::ModelShape& model;
  int stage = 0;  ///< whose part it is: of what it pulls it gives to others what it owns
};
/// The same of the ranks that have this part of the model of `plan`.
std::vector<Collective> requests_of(const plan::StepPlan& plan, const PartOfModel& part,
                                    std::size_t action, const StepSizes& sizes);

/// The requests of all actions of a rank's part of a plan.
class PlanRequests {
 public:
  PlanRequests() = default;
  explicit PlanRequests(const plan::StepPlan& own, const StepSizes& sizes = {}, int stage = 0);
  /// `action` is one of the plan.
  const std::vector<Collective>& of(const plan::Action& action) const;

 private:
  using Key = std::tuple<plan::ActionKind, int, int, int>;  // kind, range and micro-batch
  static Key key_of(const plan::Action& a) {
    return {a.kind, a.range.first, a.range.last, a.micro_batch};
  }
  std::multimap<Key, std::pair<plan::Action, std::vector<Collective>>> all_;
};

/// How many ranks take part in a collective over these axes.
int ranks_over(const plan::Mesh& mesh, const std::vector<std::string>& axes);

}  // namespace stormo::analysis
