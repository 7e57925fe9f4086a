#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace stormo::train {

/// Observes backward passes over a list of parameters: reports which gradients are complete, and
/// when the pass is over.
///
/// The hooks are on the autograd nodes that accumulate gradients. A node can have any number of
/// hooks, so the tensor's single post-accumulate hook remains free for the user. A parameter can
/// get another node: when its type changes, or when it is frozen and thawed. So call renew() before
/// each pass, else such a parameter is not reported.
/// torch::autograd::grad() accumulates nothing and does not run them. A pass inside another one
/// (re-entrant checkpointing) belongs to the outer one. All functions are called on the thread of
/// backward(), and may throw.
class BackwardHooks {
 public:
  struct Events {
    /// The gradient of parameter `index` is complete. Autograd still holds a reference to it.
    std::function<void(std::size_t index)> ready;
    /// A pass inside the pass was seen: gradients that were complete may change again.
    std::function<void()> nested;
    /// The outermost pass is over; backward() rethrows an exception of this function.
    std::function<void()> end = [] {};
    /// Called before the first ready() of a pass if the previous pass ended by an exception.
    std::function<void()> abandoned;
  };
  BackwardHooks(std::vector<torch::Tensor> parameters, Events events);
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;

  /// Observes these instead. Call it between passes only, as renew().
  void set_tensors(std::vector<torch::Tensor> parameters);
  /// Hooks the nodes that parameters have got since the last call; true if there were any. Costs
  /// about 0.1 us for each parameter.
  bool renew();

  /// While off, passes are not observed.
  void enable(bool on) { enabled_ = on; }
  bool enabled() const { return enabled_; }
  /// Whether a pass is under way; not after one that ended by an exception.
  bool in_pass() const { return !pass_.expired(); }

 private:
  struct Hooks;
  class OnGradient;
  class AfterInnerPass;
  void unhook();
  void follow_current_pass();
  void on_end_of_pass();

  Events events_;
  std::unique_ptr<Hooks> hooks_;
  bool enabled_ = true;
  // Id of the pass whose end is awaited. The pass's callback owns it: when a pass ends by an
  // exception autograd drops the callback, and the id is gone.
  std::weak_ptr<const int> pass_;
  bool open_ = false;  // a pass has begun and its end has not come
};

}  // namespace stormo::train
