#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <vector>

#include <torch/types.h>

namespace stormo::train {

/// Follows backward passes over a fixed list of parameters: which gradients are in place, and when
/// the pass is over.
///
/// Hooks hang on the nodes that accumulate gradients: any number may hang there, they leave the
/// tensors' one slot for such hooks to the user, and torch::autograd::grad(), which accumulates
/// nothing, never reaches them. A pass that runs inside another one (re-entrant checkpointing)
/// belongs to the outer one. All functions run on the thread of backward(), and may throw.
class BackwardHooks {
 public:
  struct Events {
    /// The gradient of parameter `index` is in place. Whoever calls still refers to it.
    std::function<void(std::size_t index)> ready;
    /// A pass inside the pass was seen: gradients that were in place may change.
    std::function<void()> nested;
    /// The outermost pass is over; exceptions leave backward().
    std::function<void()> end;
    /// Before the first ready() of a pass: the one before ended early, by an exception.
    std::function<void()> abandoned;
  };
  BackwardHooks(const std::vector<torch::Tensor>& parameters, Events events);
  ~BackwardHooks();
  BackwardHooks(const BackwardHooks&) = delete;

  /// While off, passes are not followed.
  void enable(bool on) { enabled_ = on; }
  bool enabled() const { return enabled_; }

 private:
  struct Hooks;
  void on_gradient(std::size_t index);
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
