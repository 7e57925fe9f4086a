#pragma once

#include <deque>
#include <functional>
#include <map>
#include <vector>

#include <stormo/parallel/sharding/sharded.h>
#include <stormo/plan/step_plan.h>

namespace stormo::parallel {

/// Emits the actions that move units of parameters and their gradients, by the ranges of the units.
/// Which unit comes when is the caller's.
class ShardActions {
 public:
  using Emit = std::function<void(const plan::Action&)>;
  /// `replicas`: its all_reduces become all_reduces of parts.
  ShardActions(const Sharding& how, const plan::StepPlan& replicas, Emit emit);

  void gather(plan::Range unit);
  void reshard(plan::Range unit);

  /// Of a pass that ended early.
  void forget_reductions() { under_way_.clear(); }
  void sum_weights();
  /// And what follows the oldest reduction of the same stage, if more than Sharding::prefetch are
  /// under way.
  void reduce(plan::Range unit, int stage = 0);
  /// What follows the reductions that are left.
  void drain();
  void find_unused();
  /// The optimizer has used the gradients. Stage 1 has its part of each among the terms until then.
  void after_update();

 private:
  void emit(plan::ActionKind kind, plan::Range unit, bool asynchronous);
  void drain_oldest(std::deque<plan::Range>& under_way);
  void release_terms(plan::Range unit);

  Sharding how_;
  Emit emit_;
  std::vector<plan::Action> averages_;                // the all_reduces of `replicas`
  std::map<int, std::deque<plan::Range>> under_way_;  // by stage: units, the oldest first
  std::map<int, plan::Range> held_;  // by first parameter: units whose terms stay until the update
};

}  // namespace stormo::parallel
