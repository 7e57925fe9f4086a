#pragma once

#include <memory>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Synchronous data parallel training of an unmodified module in the user's own loop.
///
/// The constructor gives every rank rank 0's parameters and buffers. From then on, when
/// `loss.backward()` returns, the gradients are the average over all ranks, weighted by
/// set_weight(); the optimizer and everything else stay the user's own. Parameters that a step does
/// not use are fine. Buffers (such as running statistics) are private to each rank afterwards.
///
/// Every rank must run the same number of backward passes, or call reduce_gradients() in place of
/// one: a rank that has no samples in a step does so after set_weight(0). A failure of the group
/// leaves backward() as a stormo::Error with the first cause. Wrap the module once; one thread at a
/// time.
class DistributedDataParallel {
 public:
  /// Throws Error on every rank when the ranks' modules differ, naming the first difference.
  DistributedDataParallel(comm::Communicator& world, std::shared_ptr<torch::nn::Module> module);
  template <class Module>
  DistributedDataParallel(comm::Communicator& world, const torch::nn::ModuleHolder<Module>& module)
      : DistributedDataParallel(world, std::static_pointer_cast<torch::nn::Module>(module.ptr())) {}
  /// Removes the hooks; the module is as before.
  ~DistributedDataParallel();
  DistributedDataParallel(const DistributedDataParallel&) = delete;
  DistributedDataParallel& operator=(const DistributedDataParallel&) = delete;

  /// What this rank's gradients count for, usually the number of samples in its batch when the loss
  /// is their mean. Stays until changed; 1 at first. Throws Error for a negative or non-finite
  /// number.
  void set_weight(double weight);

  /// While it lives, backward() leaves the gradients local, so that several passes accumulate; the
  /// first backward() after it, or reduce_gradients(), averages the sum.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(DistributedDataParallel& ddp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& enabled_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  /// The averaging alone, without a backward pass. Throws Error.
  void reduce_gradients();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stormo::train

namespace stormo {
using train::DistributedDataParallel;
}  // namespace stormo
