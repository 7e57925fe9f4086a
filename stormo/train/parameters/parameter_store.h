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

/// Some of a model's parameters, by their place in its list.
struct ParameterRange {
  std::size_t first = 0;
  std::size_t last = 0;  ///< one past the end
  bool operator==(const ParameterRange&) const = default;
};
inline std::size_t size_of(const ParameterRange& range) { return range.last - range.first; }

/// Told of every action where it is done, not where it is announced.
using DoneAction = std::function<void(const plan::Action&)>;

/// A model's parameters and their optimizer state as one rank holds them: replicated, in one copy
/// per host, or sharded. What the actions of a plan mean for it; the Runner knows no more of
/// strategies. All functions are collectives unless they say otherwise.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Not a collective.
  void on_done(DoneAction done) { done_ = std::move(done); }

  /// kBadPlan for a verified plan that this store cannot do. Not a collective.
  virtual Status check(const plan::StepPlan& plan) const = 0;
  /// From the next step on perform() gets the actions of `plan`, which check() has accepted. Not a
  /// collective, but before the first step.
  virtual void follow(const plan::StepPlan& /*plan*/) {}
  /// Before a backward. During one of the `last`, after which no other micro-batch adds gradients,
  /// starts what is asynchronous and has its gradients. Not a collective.
  virtual void begin_backward(bool /*last*/) {}
  /// Does an action that moves or drops parameters or gradients: the latter become
  /// sum(weight_r * g_r) / sum(weight_r). What it makes may still be under way when this returns:
  /// make_readable(), perform(), gradient_norm() and update() wait for what they need.
  virtual Status perform(const plan::Action& action, double weight) = 0;
  /// Waits until the parameters that `segments` read are there. Not a collective.
  virtual Status make_readable(plan::Range /*segments*/) { return {}; }
  /// The 2-norm of the whole gradient, after it was reduced.
  virtual Result<double> gradient_norm() = 0;
  /// kUpdate, of what this rank owns of the range. Not a collective, but for rules that need norms.
  virtual Status update(const ParameterRange& range, const StepRate& rate) = 0;
  /// The step is over: drops the gradients. Not a collective.
  virtual void zero_grad() { optimizer().zero_grad(); }

  /// Whether the module's parameters can be read at any time; else only while what readable()
  /// returns lives. Not a collective.
  virtual bool always_readable() const { return true; }
  virtual std::shared_ptr<void> readable() { return nullptr; }
  /// The module keeps its values when this has gone. Nothing is trained after it.
  virtual void keep_values() {}

  virtual Optimizer& optimizer() = 0;
  /// Whether every rank holds the whole state: then optimizer() gives and takes it. Else pieces()
  /// and load_state() do.
  virtual bool whole() const { return true; }
  /// Parameters and optimizer state that this rank is to save; those of all ranks cover everything
  /// that requires a gradient once. Not a collective.
  virtual std::vector<TensorPiece> pieces() const { return {}; }
  /// Reads the optimizer state of what this rank owns. Not a collective.
  virtual Status load_state(const ReadState&) { return {}; }

 protected:
  ParameterStore() = default;
  /// Tells the listener.
  void done(const plan::Action& action) const {
    if (done_) done_(action);
  }
  /// Whether the Runner has perform() do it.
  static bool moves(plan::ActionKind kind);
  static Status cannot(const plan::StepPlan& plan, std::size_t action, const std::string& why) {
    return Status(Code::kBadPlan, plan::describe(plan, action) + ": " + why);
  }

 private:
  DoneAction done_;
};

}  // namespace stormo::train
