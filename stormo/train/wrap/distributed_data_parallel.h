#pragma once

#include <functional>
#include <memory>
#include <string>

#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <stormo/comm/communicator.h>
#include <stormo/plan/step_plan.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/reduction/reduction.h>

namespace stormo::train {

class BackwardHooks;

/// Synchronous data parallel training of an unmodified module in the user's own loop.
///
/// The constructor gives every rank rank 0's parameters and buffers. From then on, when
/// `loss.backward()` returns, the gradients are the average over all ranks, weighted by
/// set_weight(); the optimizer and everything else stay the user's own. Parameters that a step does
/// not use are fine, and so are frozen and shared ones, several forward passes before a backward, a
/// module used in several losses, and backward passes inside backward (re-entrant checkpointing).
/// Weights of torch::nn::Embedding and EmbeddingBag with sparse(true) are exchanged as rows and
/// stay sparse. Buffers (such as running statistics) are private to each rank until
/// broadcast_buffers().
///
/// The module may change later: values that are loaded, another type, layers that are frozen,
/// thawed, added or replaced. Gradients are averaged from the first pass after the change, if every
/// rank has made the same one, to the same values; else every rank gets an Error. Noticing it costs
/// less than 1 us per parameter and pass. A clone of the module is another module.
///
/// Gradients are reduced where autograd put them: nothing is copied but those below 64 KiB. Where a
/// wire or a spare core makes it pay, this happens in buckets during backward; by default the first
/// steps measure whether it does (overlap()).
///
/// Every rank must run the same number of backward passes, or call reduce_gradients() in place of
/// one: a rank that has no samples in a step does so after set_weight(0); see any_rank_has(). A
/// failure of the group leaves backward() as a stormo::Error with the first cause. While
/// two wrappers have the same parameter, backward() throws. One thread at a time; the first pass
/// after a change runs on the thread of the pass before it, or of the constructor.
class DistributedDataParallel {
 public:
  /// Throws Error on every rank when the ranks' modules differ, naming the first difference.
  /// `how` must be equal on all ranks: `{.overlap = Overlap::buckets(4 << 20)}`, or
  /// `{.codec = Codec::kBFloat16}` for half the bytes. A measured overlap may change the
  /// order of additions between runs; fix it where runs must be equal bit for bit.
  DistributedDataParallel(comm::Communicator& world, std::shared_ptr<torch::nn::Module> module,
                          const ReductionOptions& how = {});
  template <class Module>
  DistributedDataParallel(comm::Communicator& world, const torch::nn::ModuleHolder<Module>& module,
                          const ReductionOptions& how = {})
      : DistributedDataParallel(world, std::static_pointer_cast<torch::nn::Module>(module.ptr()),
                                how) {}
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
    BackwardHooks& hooks_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  /// The averaging alone, without a backward pass. Throws Error.
  void reduce_gradients();

  /// Whether some rank says `mine`: the condition of a loop over unequal numbers of batches, in
  /// which a rank without one calls set_weight(0) and reduce_gradients(). Throws Error.
  bool any_rank_has(bool mine);
  /// Gives every rank rank 0's buffers, e.g. before an evaluation. Throws Error.
  void broadcast_buffers();
  /// How gradients are reduced, for a log: "gradients are reduced at the end of backward".
  std::string overlap() const;
  /// The step that the loop makes; backward() follows it where it counts and reduces, the rest is
  /// the loop's. Another one when a measured overlap tries the next form, and after the first pass
  /// in buckets, when parameters are sorted by the order in which gradients came. A module without
  /// trainable parameters has an empty one.
  const plan::StepPlan& plan() const;
  /// From now on what backward() has to do for this runs inside of `around`, which calls what it is
  /// given, once, and may translate its exceptions.
  using Around = std::function<void(const std::function<void()>& work)>;
  void run_hooks_in(Around around);
  /// `done` is told of every action of the plan when this rank has done it: backward, count,
  /// all_reduce.
  void on_action(DoneAction done);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace stormo::train

namespace stormo {
using train::DistributedDataParallel;
}  // namespace stormo
