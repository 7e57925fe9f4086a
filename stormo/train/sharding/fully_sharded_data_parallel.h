#pragma once

#include <concepts>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <tuple>
#include <vector>

#include <torch/nn/module.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <stormo/comm/communicator.h>
#include <stormo/model/chain.h>
#include <stormo/train/optimizer/optimizer.h>
#include <stormo/train/parameters/parameter_store.h>
#include <stormo/train/sharding/sharded_units.h>
#include <stormo/train/state/safetensors.h>

namespace stormo::train {

/// Bytes of model state on this rank: what they are now, and what they are by the formula (of
/// parallel::model_state_bytes) at the end of a backward pass.
struct ShardingMemory {
  std::int64_t parameters = 0;
  std::int64_t gradients = 0;
  std::int64_t optimizer =
      0;  ///< its slots, and parameters in their own type if computed in another
  std::int64_t predicted = 0;
  std::int64_t total() const { return parameters + gradients + optimizer; }
};

/// Sharded data parallel training in the user's own loop: ZeRO (S. Rajbhandari et al., 2020) and
/// FSDP (Y. Zhao et al., 2023).
///
/// The model is cut into units: the Segments of a Chain, the children of a Sequential, or what is
/// given to shard(). plan() is the step that follows from them. Each rank owns 1/N of every unit,
/// its gradient and its optimizer state. Whole units exist while they compute (stage 3) or always
/// (1, 2). C++ modules have no forward hooks, so the forward pass of a unit must go through
/// forward(); a module called directly works in stages 1 and 2 only, and reads released memory in
/// stage 3.
///
///   FullyShardedDataParallel fsdp(world, model);
///   auto optimizer = fsdp.make_optimizer(options);
///   loss(fsdp.forward(x)).backward();   // gradients of the shards: average over the ranks
///   fsdp.step(*optimizer, lr);
///   fsdp.zero_grad();
///
/// Every rank runs the same forwards and backwards of the same units. A rank that has no samples in
/// a step does so with an empty batch after set_weight(0), or calls join_step(). Parameters that a
/// step does not use are fine, also when only some ranks use them. A failure of the group leaves
/// forward() and backward() as a stormo::Error with the first cause. One thread at a time.
///
/// Cost per step: stages 1 and 2 send 2K(N-1)/N bytes per rank for K bytes of parameters, stage 3
/// 3K(N-1)/N; one more all_reduce of 8 bytes and one of a byte per parameter.
class FullyShardedDataParallel {
 public:
  /// shard() follows. Throws Error for options that cannot be.
  explicit FullyShardedDataParallel(comm::Communicator& world, const ShardingOptions& options = {});
  /// Hybrid: parameters are cut over groups.shards, and gradients averaged over groups.replicas.
  explicit FullyShardedDataParallel(const ShardingGroups& groups,
                                    const ShardingOptions& options = {});
  /// Everyone gets rank 0's parameters and buffers. Throws Error on every rank when modules differ.
  FullyShardedDataParallel(comm::Communicator& world, std::shared_ptr<model::Chain> chain,
                           const ShardingOptions& options = {})
      : FullyShardedDataParallel(world, options) {
    shard(std::move(chain));
  }
  FullyShardedDataParallel(comm::Communicator& world, const torch::nn::Sequential& sequential,
                           const ShardingOptions& options = {})
      : FullyShardedDataParallel(world, options) {
    shard(sequential);
  }
  /// Parameters that were released have no values afterwards: see keep_gathered().
  ~FullyShardedDataParallel();
  FullyShardedDataParallel(const FullyShardedDataParallel&) = delete;
  FullyShardedDataParallel& operator=(const FullyShardedDataParallel&) = delete;

  /// Makes a unit of each segment (child); forward(x) runs all of them.
  void shard(std::shared_ptr<model::Chain> chain);
  void shard(const torch::nn::Sequential& sequential);
  /// Makes one unit of `block`; forward(block, ...) runs it. Its parameters are called `name`.x. A
  /// parameter that an earlier unit has stays there, and that unit is whole too when this one runs.
  /// Blocks are best given in the order of their forward: the next one is gathered ahead.
  template <class Block>
  void shard(const std::string& name, const Block& block,
             const std::optional<ShardPrecision>& precision = {}) {
    add_unit(name, module_of(block), {}, precision);
  }

  /// The whole Chain or Sequential. Floating-point inputs take the type of computation; the outcome
  /// has the parameters' own.
  torch::Tensor forward(torch::Tensor x);
  /// One block: block->forward(arguments...), which returns tensors, or a vector or tuple of them.
  template <class Block, class... Arguments>
    requires(sizeof...(Arguments) > 0)
  auto forward(const Block& block, Arguments&&... arguments) {
    const auto module = module_of(block);
    const int unit = unit_of(*module);
    before_forward(unit);
    auto out = module->forward(cast_input(unit, std::forward<Arguments>(arguments))...);
    std::vector<torch::Tensor> tensors;
    collect(out, tensors);
    after_forward(unit, tensors);
    return out;
  }

  /// See DistributedDataParallel::set_weight.
  void set_weight(double weight);

  /// While it lives, gradients stay whole and local, so that several passes accumulate; the first
  /// backward() after it reduces the sum.
  class [[nodiscard]] NoSync {
   public:
    explicit NoSync(FullyShardedDataParallel& fsdp);
    ~NoSync();
    NoSync(const NoSync&) = delete;
    NoSync& operator=(const NoSync&) = delete;

   private:
    bool& enabled_;
    bool before_;
  };
  NoSync no_sync() { return NoSync(*this); }

  /// In place of one forward(x) and its backward(), on a rank that has no samples: joins the
  /// others' transfers and counts for nothing.
  void join_step();

  /// While it lives, all parameters are whole and can be read, also by the module's own forward.
  /// Blocks; every rank does it in the same place.
  class [[nodiscard]] Gathered {
   public:
    explicit Gathered(FullyShardedDataParallel& fsdp);
    ~Gathered();
    Gathered(const Gathered&) = delete;
    Gathered& operator=(const Gathered&) = delete;

   private:
    FullyShardedDataParallel& fsdp_;
  };
  Gathered gathered() { return Gathered(*this); }
  /// Gathers the module for good: it keeps its values, without another copy, when this has gone.
  /// Nothing is trained after it. Blocks; every rank does it in the same place.
  void keep_gathered();

  /// Any of Stormo's optimizers on this rank's ranges of the trainable parameters, also those that
  /// need norms of whole parameters. Its state is its
  /// state_pieces(). It must not outlive this.
  std::unique_ptr<FusedOptimizer> make_optimizer(const OptimizerOptions& options) const;
  /// One step, from the gradients where their reduction left them, of make_optimizer()'s.
  void step(FusedOptimizer& optimizer, double lr) { step(optimizer, StepRate{.lr = lr}); }
  void step(FusedOptimizer& optimizer, const StepRate& rate);
  /// For other optimizers: this rank's piece (one dimension) of each trainable parameter that it
  /// has a part of, with its gradient. Any that treats elements alone will do, those of
  /// torch::optim too, unless precision.reduce is another type than the parameters'.
  std::vector<NamedParameter> shards() const;
  /// Scales the gradients so that their norm over all ranks is at most max_norm > 0; returns the
  /// norm before. Blocks.
  double clip_gradients(double max_norm);
  /// The 2-norm of the gradients over all ranks. Blocks.
  double gradient_norm() const;
  void zero_grad();

  /// Every parameter's part on this rank, for checkpoints, frozen ones too; the pieces of all ranks
  /// of a shard group make up the whole.
  std::vector<TensorPiece> state() const;
  /// Whether this rank saves its state(); false where a rank of another shard group has the same.
  bool has_first_copy() const;
  /// All parameters by name, in shape and type as state() has their parts, without values.
  TensorMap shapes() const;
  /// The buffers of all units by name; shared.
  TensorMap buffers() const;
  /// Call on every rank after writing into the tensors of state() or shards() other than between a
  /// backward pass and the next forward.
  void parameters_changed();

  ShardingMemory memory_report(const FusedOptimizer* optimizer = nullptr) const;

  /// The step of a loop that runs each unit once, in the order in which they were given, and has a
  /// backward. forward() and backward() do its actions; load, loss and agree are the loop's. A loop
  /// that runs units otherwise has the actions of its own order: see parallel::ShardingOrder.
  plan::StepPlan plan() const;
  /// `done` is told of every action when this rank has done it.
  void on_action(DoneAction done);

 private:
  struct State;
  friend class ShardedStore;  // which does what a plan says with the units
  ShardedUnits& units() const;
  /// Where more ranks than those of the shards have parts of the same parameters: `sum` is over all
  /// of them. A parameter's norms on this rank add to it if its name counts.
  std::unique_ptr<FusedOptimizer> make_optimizer(
      const OptimizerOptions& options, SumOverRanks sum,
      const std::function<bool(const std::string&)>& counts) const;
  /// Of the gradients on this rank, of the parameters whose name counts.
  double squares(const std::function<bool(const std::string&)>& counts) const;

  template <class M>
  static std::shared_ptr<M> module_of(const std::shared_ptr<M>& module) {
    return module;
  }
  template <class M>
  static std::shared_ptr<M> module_of(const torch::nn::ModuleHolder<M>& holder) {
    return holder.ptr();
  }
  static void collect(const torch::Tensor& t, std::vector<torch::Tensor>& out) { out.push_back(t); }
  template <class T>
  static void collect(const std::vector<T>& list, std::vector<torch::Tensor>& out) {
    for (const T& each : list) collect(each, out);
  }
  template <class... T>
  static void collect(const std::tuple<T...>& tuple, std::vector<torch::Tensor>& out) {
    std::apply([&](const T&... each) { (collect(each, out), ...); }, tuple);
  }
  template <class T>
  decltype(auto) cast_input(int unit, T&& argument) const {
    if constexpr (std::same_as<std::remove_cvref_t<T>, torch::Tensor>) {
      return cast_tensor(unit, argument);
    } else {
      return std::forward<T>(argument);
    }
  }

  void add_unit(const std::string& name, const std::shared_ptr<torch::nn::Module>& block,
                const std::vector<torch::Tensor>& borrowed,
                const std::optional<ShardPrecision>& precision);
  /// A unit of parameters that are equal on all ranks, by their names in the model.
  void add_unit(const std::string& name, std::vector<NamedParameter> own,
                const ShardPrecision& precision);
  int unit_of(const torch::nn::Module& block) const;
  void before_forward(int unit);
  void after_forward(int unit, const std::vector<torch::Tensor>& outputs);
  torch::Tensor cast_tensor(int unit, const torch::Tensor& t) const;

  std::shared_ptr<State> state_;
};

}  // namespace stormo::train

namespace stormo {
using train::FullyShardedDataParallel;
using train::ShardingOptions;
}  // namespace stormo
