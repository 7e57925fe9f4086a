#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/gradient_bucket.h>
#include <stormo/train/reduction/reduction.h>

namespace stormo::train {

/// The step of replicas that a loop of one's own makes: all parameters in one segment, averaged at
/// the end of backward or in buckets; kMeasured is no form. There must be parameters.
plan::StepPlan plan_of_replicas(const std::vector<NamedParameter>& parameters, int ranks,
                                const Overlap& overlap);

/// Does what a plan's all_reduce actions say with the gradients of a fixed list of parameters: each
/// is replaced by sum(weight_r * g_r) / sum(weight_r) over the ranks r. A rank of weight 0
/// contributes nothing and need not have run backward; the sum of weights must be positive. Of
/// sparse tables rows travel, when the dense ones of their action are there; they stay sparse.
///
/// What is asynchronous starts as soon as its gradients are in place, which ready() tells, in the
/// plan's order, on the group's thread; else when perform() comes to it.
class GradientReducer {
 public:
  /// `world` is borrowed for the reducer's life. Throws Error(kInvalidArgument) naming a parameter
  /// that is not dense, not on the CPU or of a type that cannot be reduced. Of `how`, overlap is
  /// the plan's business.
  GradientReducer(comm::Communicator& world, std::vector<NamedParameter> parameters,
                  const Reduction& how);
  ~GradientReducer();

  /// From the next pass on does the all_reduce actions of `plan`, whose trainable parameters are
  /// those of the list. Between passes only.
  void follow(const plan::StepPlan& plan);
  /// Told of what started before perform() came to it.
  void on_done(DoneAction done) { done_ = std::move(done); }
  /// Whether the plan has something asynchronous.
  bool can_start_early() const;

  /// What this rank's gradients count for in the passes that follow.
  void set_weight(double weight) { weight_ = weight; }
  /// A backward has added to the gradient of parameter `index`; once for each of the plan that
  /// reads it. Optional: perform() takes what was not announced.
  void ready(std::size_t index);
  /// From here to the end of the pass ready() starts nothing: gradients may still change.
  void hold() { held_ = true; }

  /// count and all_reduce. What is asynchronous is under way when this returns, else done.
  Status perform(const plan::Action& action);
  /// Calls `averaged(range)` for each action that has parameters of `range`, as soon as they are
  /// averaged, while others still travel, in the plan's order.
  using Averaged = std::function<Status(const ParameterRange&)>;
  Status finish(const ParameterRange& range, const Averaged& averaged);
  Status finish();
  /// The pass is over and finished.
  void next_pass();

  /// In a loop of one's own: a pass begins that will be reduced. Optional; early, it hides the
  /// exchange of weights.
  Status begin_pass();
  /// The end of a pass: performs what is not on its way yet, in the plan's order, and waits for
  /// all.
  Status reduce();

  /// Forgets a pass that ended early. What it started is waited for.
  void abandon();

 private:
  /// One all_reduce action.
  struct Part {
    plan::Action action;
    ParameterRange range;
    std::vector<std::unique_ptr<GradientBucket>> buckets;  ///< one for each element type
    std::vector<NamedParameter> tables;                    ///< with sparse gradients
    std::size_t missing = 0;  ///< gradients that are not ready in this pass
    bool under_way = false;
  };
  void expect_backwards(const plan::StepPlan& plan);
  void start_full_parts();
  Status start_next();
  Status start(Part& part);
  Status count(bool asynchronous);
  Status finish(Part& part);
  Status reduce_tables(const Part& part);

  comm::Communicator& world_;
  std::vector<NamedParameter> parameters_;
  std::string algorithm_;
  std::optional<torch::ScalarType> travels_as_;
  DoneAction done_;

  std::optional<plan::Action> count_;
  std::vector<Part> parts_;
  std::vector<std::size_t> part_of_;  // by parameter; parts_.size(): none
  std::vector<int> expected_;         // by parameter: backwards that add to its gradient
  std::vector<int> announced_;        // by parameter, in this pass
  std::size_t started_ = 0;           // parts of this pass
  bool held_ = false;
  double weight_ = 1;
  double total_weight_ = 0;  // of this pass, once known
  comm::Work total_known_;
  bool total_asked_ = false;
};

}  // namespace stormo::train
