#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <torch/types.h>

#include <stormo/parallel/sharding/sharding_order.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/sharding/sharded_units.h>

namespace stormo::train {

/// The units of a sharded model in a loop of the user's own: told which of them computes next, it
/// does the actions of the step. Forward is told by its caller, backward by autograd. Throws Error.
class ShardedLoop : public std::enable_shared_from_this<ShardedLoop> {
 public:
  ShardedLoop(const ShardingGroups& groups, const ShardingOptions& options);

  /// See ShardedUnits::add(); `name` is the segment's in plan().
  void add(const std::string& name, std::vector<NamedParameter> own,
           const std::vector<torch::Tensor>& borrowed, const ShardPrecision& precision);
  ShardedUnits& units() { return units_; }
  const plan::ModelShape& model() const { return model_; }
  plan::StepPlan plan() const;
  void on_action(DoneAction done) { done_ = std::move(done); }
  /// Tells the listener that the caller has done what makes this: kNorm, kClipped or kUpdated.
  void did(plan::Value made);
  /// What this rank's gradients count for.
  double weight = 1;
  /// Whether the next backward pass reduces gradients; else they stay where they are.
  bool synchronise = true;

  /// Returns when the unit can be read.
  void before_forward(int unit);
  void after_forward(int unit, const std::vector<torch::Tensor>& outputs);
  /// A forward and backward of all units, in order, that compute nothing and count for nothing.
  void join_step();
  /// Makes all units whole; blocks. Ended by release_all().
  void gather_all();
  /// Trainable parameters are gathered again when they are read next: an update may follow whose
  /// gradients were there before gather_all().
  void release_all();
  /// Makes all units whole for good.
  void keep_gathered();
  /// The ranks' parts may have changed, those of frozen parameters too.
  void parameters_changed();
  /// The optimizer has used the gradients.
  void after_update() { order().after_update(); }

 private:
  parallel::Sharding sharding() const;
  plan::StepPlan replicas() const;
  parallel::ShardingOrder& order();
  /// The units follow plan(), unless they follow another one.
  void set_plan();
  void perform(const plan::Action& action);
  /// Of an action that is not of the units alone.
  void tell(const std::function<bool(const plan::ActionRow&)>& is, plan::Range of);
  /// A reduction has the form of the options; other actions are as they are.
  plan::Action in_form(plan::Action action) const;
  /// `differentiated`: it has a backward, if only of units before it that have none.
  parallel::ShardingOrder::Call end_forward(int unit, bool recorded, bool differentiated);
  void watch(const torch::Tensor& output, const parallel::ShardingOrder::Call& call);
  void on_gradient(const parallel::ShardingOrder::Call& call);
  void begin_pass();
  void before_backward(const parallel::ShardingOrder::Call& call);
  void end_backward();
  void end_pass();

  ShardedUnits units_;
  std::vector<Codec> codecs_;                      // of the gradients of each unit
  bool states_types_ = true;                       // the plan has the types of all units
  plan::ModelShape model_;                         // a segment for each unit
  std::map<const c10::TensorImpl*, int> numbers_;  // of its parameters
  std::optional<parallel::ShardingOrder> order_;   // of this model
  DoneAction done_;
  std::vector<plan::Action> told_;  // of a step that clips; with a listener
  int micro_batch_ = 0;             // backward passes since gradients were reduced
  // A backward pass has an id, so that one that ended early by an exception blocks no later one.
  int pass_ = -1;
  std::optional<int> computing_;  // the unit whose backward runs
  std::vector<int> unreached_;    // units that no gradient reaches, since the last pass
};

}  // namespace stormo::train
