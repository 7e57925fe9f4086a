#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/tensor_piece.h>

namespace stormo::train {

/// A range of a model's list of parameters.
struct ParameterRange {
  std::size_t first = 0;
  std::size_t last = 0;  ///< one past the end
  bool operator==(const ParameterRange&) const = default;
};
inline std::size_t size_of(const ParameterRange& range) { return range.last - range.first; }

/// Called for every action by the code that performs it.
using DoneAction = std::function<void(const plan::Action&)>;

/// The parameters of a model and their optimizer state on one rank: replicated, in one copy per
/// host, or sharded. It performs the actions of a plan that depend on this placement; the Runner
/// does not depend on strategies otherwise. All functions are collectives unless noted otherwise.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Sets the function that is called for each action when it is done. Not a collective.
  void on_done(DoneAction done) { done_ = std::move(done); }

  /// kBadPlan for a verified plan that this store cannot execute. Not a collective.
  virtual Status check(const plan::StepPlan& plan) const = 0;
  /// From the next step on perform() gets the actions of `plan`, which check() has accepted. Not a
  /// collective, except before the first step.
  virtual void follow(const plan::StepPlan& /*plan*/) {}
  /// Called before a backward. `last`: no later micro-batch adds to its gradients. During such a
  /// backward, asynchronous reductions start when their gradients are complete. Not a collective.
  virtual void begin_backward(bool /*last*/) {}
  /// Performs an action that moves or frees parameters or gradients. Reduced gradients are
  /// sum(weight_r * g_r) / sum(weight_r). An asynchronous action may still be running when this
  /// returns: make_readable(), perform(), gradient_norm() and update() wait for the results that
  /// they need.
  virtual Status perform(const plan::Action& action, double weight) = 0;
  /// Blocks until the parameters that `segments` read are available. Not a collective.
  virtual Status make_readable(plan::Range /*segments*/) { return {}; }
  /// The 2-norm of the whole gradient, after it was reduced.
  virtual Result<double> gradient_norm() = 0;
  /// Performs kUpdate on the part of the range that this rank owns. Not a collective, except for
  /// rules that need norms.
  virtual Status update(const ParameterRange& range, const StepRate& rate) = 0;
  /// Called at the end of a step: frees the gradients. Not a collective.
  virtual void zero_grad() { optimizer().zero_grad(); }

  /// Whether the module's parameters can be read at any time. Otherwise they can be read only while
  /// the object that readable() returns lives. Not a collective.
  virtual bool always_readable() const { return true; }
  virtual std::shared_ptr<void> readable() { return nullptr; }
  /// Makes the module keep its values after this object is destroyed. No training is possible
  /// afterwards.
  virtual void keep_values() {}

  virtual Optimizer& optimizer() = 0;
  /// Whether every rank has the whole state. Then use optimizer() to save and load it, else
  /// pieces() and load_state().
  virtual bool whole() const { return true; }
  /// The parameters and optimizer state that this rank must save. The pieces of all ranks cover
  /// every trainable parameter exactly once. Not a collective.
  virtual std::vector<TensorPiece> pieces() const { return {}; }
  /// Reads the optimizer state of the elements that this rank owns. Not a collective.
  virtual Status load_state(const ReadState&) { return {}; }

 protected:
  ParameterStore() = default;
  /// Calls the listener of on_done().
  void done(const plan::Action& action) const {
    if (done_) done_(action);
  }
  /// Whether the Runner passes actions of this kind to perform().
  static bool moves(plan::ActionKind kind);
  static Status cannot(const plan::StepPlan& plan, std::size_t action, const std::string& why) {
    return Status(Code::kBadPlan, plan::describe(plan, action) + ": " + why);
  }

 private:
  DoneAction done_;
};

}  // namespace stormo::train
