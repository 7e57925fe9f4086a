#pragma once

#include <functional>
#include <memory>

namespace stormo::train {

/// While it lives, calls a function before each backward pass of one thread that accumulates
/// gradients: after the forward pass, so that what it does to the accumulators of parameters counts
/// in this very pass. The thread is the one that made the watch, or that called follow_thread()
/// last. Also called before a pass inside another one. An exception of the function leaves
/// backward(), and nothing is computed.
///
/// libtorch has no hook there. The first watch makes every later backward() of the process go
/// through an autograd::Engine that calls the watches and then the engine that was there before.
/// Costs a lock per backward pass.
class PassWatch {
 public:
  explicit PassWatch(std::function<void()> before_pass);
  ~PassWatch();
  PassWatch(const PassWatch&) = delete;
  PassWatch& operator=(const PassWatch&) = delete;

  /// From now on passes of the calling thread count.
  void follow_thread();

 private:
  struct Entry;
  std::unique_ptr<Entry> entry_;
};

}  // namespace stormo::train
