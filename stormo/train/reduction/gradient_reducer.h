#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/autograd/backward_hooks.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/gradient_bucket.h>
#include <stormo/train/reduction/reduction.h>
#include <stormo/train/reduction/terms_of_gradients.h>

namespace stormo::train {

/// The plan of replicas for a user's own loop: all parameters in one segment, averaged at the end
/// of backward or in buckets; `how.overlap` must not be kMeasured. There must be parameters.
plan::StepPlan plan_of_replicas(const std::vector<NamedParameter>& parameters, int ranks,
                                const ReductionOptions& how);

/// The first reduction of replicas; all others are over the same ranks. Null: there is none.
const plan::Action* first_reduction(const plan::StepPlan& plan);

/// Performs the all_reduce actions of a plan on the gradients of a fixed list of parameters: each
/// is replaced by sum(weight_r * g_r) / sum(weight_r) over the ranks r. A rank of weight 0
/// contributes nothing and need not have run backward; the sum of weights must be positive. Of
/// sparse gradients only rows are sent, after the dense gradients of the same action; they stay
/// sparse.
///
/// Asynchronous actions start as soon as their gradients are complete, as reported by ready(), in
/// the order of the plan, and run on the group's thread. All others run in perform().
class GradientReducer {
 public:
  /// `world` is borrowed for the reducer's life. Throws Error(kInvalidArgument) naming a parameter
  /// that is not dense or of a type that cannot be reduced.
  GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters);
  ~GradientReducer();

  /// From the next pass on performs the all_reduce actions of `plan`, whose trainable parameters
  /// must be those of the list. Call it between passes only.
  void set_plan(const plan::StepPlan& plan);
  /// See ParameterStore.
  TensorMap residuals() const;
  void keep_residuals(TensorMap kept) { kept_ = std::move(kept); }
  /// Called for actions that start before perform() is called for them.
  void on_done(DoneAction done) { done_ = std::move(done); }
  /// Called once in a pass for the gradients of each action, before they are sent: it may replace
  /// those of this rank.
  using Prepare = std::function<void(const ParameterRange&)>;
  void prepare_with(Prepare prepare) { prepare_ = std::move(prepare); }
  /// From now on asynchronous actions start during backward passes, as soon as their gradients are
  /// complete. Installs no hooks if the plan has none. To be called again after set_plan().
  void observe_backward();
  /// Called before a backward that is observed. Reductions start during it only if `last`.
  void begin_backward(bool last);

  /// Weight of this rank's gradients in the following passes.
  void set_weight(double weight) { weight_ = weight; }
  /// Of all ranks, after a `sum_weights` of this pass that is not asynchronous.
  double total_weight() const { return total_weight_; }
  /// Reports that a backward has added to the gradient of parameter `index`; once for each backward
  /// of the plan that reads the parameter. Optional: perform() also reduces gradients that were not
  /// reported.
  void ready(std::size_t index);
  /// Until the end of the pass ready() starts no reduction, because gradients may still change.
  void defer() { held_ = true; }

  /// Performs `sum_weights` and `all_reduce`. When this returns, an asynchronous action is started,
  /// any other is complete.
  Status perform(const plan::Action& action);
  /// Waits for each action that has parameters of `range`, in the order of the plan, and calls
  /// `averaged(range)` as soon as they are averaged, while later actions may still be running.
  using Averaged = std::function<Status(const ParameterRange&)>;
  Status finish(const ParameterRange& range, const Averaged& averaged);
  Status finish();
  /// The pass is over and finished.
  void next_pass();

  /// For a user's own loop: begins a pass that will be reduced. Optional; when called early, the
  /// exchange of weights overlaps with computation.
  Status begin_pass();
  /// At the end of a pass: performs the actions that have not started, in the order of the plan,
  /// and waits for all.
  Status reduce();

  /// Discards a pass that ended early, after waiting for the actions that it started.
  void abandon();

 private:
  /// One all_reduce action.
  struct Part {
    plan::Action action;
    ParameterRange range;
    std::vector<std::unique_ptr<GradientBucket>> buckets;  ///< one for each element type
    std::vector<NamedParameter> tables;                    ///< with sparse gradients
    std::size_t missing = 0;       ///< gradients that are not ready in this pass
    std::vector<comm::Work> work;  ///< what is under way of it
    bool under_way = false;
  };
  /// `numbers`: by number in the plan, that in the list.
  Part part_of_plan(const plan::StepPlan& plan, std::size_t action,
                    const std::vector<std::size_t>& numbers);
  /// Whether the next action may start before perform() is called for it.
  bool next_is_full() const;
  Status start_next();
  Status count(bool asynchronous);
  Result<double> sum_of_weights();
  Status reduce_tables(const Part& part);

  comm::Communicator& world_;
  std::vector<NamedParameter> parameters_;
  DoneAction done_;
  Prepare prepare_;

  std::optional<plan::Action> count_;
  std::vector<analysis::Collective> counted_;  // what it sends
  std::vector<Part> parts_;
  /// Residuals of parts that this plan does not have; a later one may.
  TensorMap kept_;
  std::unique_ptr<BackwardHooks> hooks_;  // null: nothing is observed
  std::vector<std::size_t> part_of_;      // by parameter; parts_.size(): none
  std::vector<int> terms_, missing_;      // by parameter: terms of its gradient, and those to come
  std::size_t started_ = 0;               // parts of this pass
  bool held_ = false;
  double weight_ = 1;
  double total_weight_ = 0;  // of this pass, once known
  comm::Work total_known_;
  bool total_asked_ = false;
};

}  // namespace stormo::train
