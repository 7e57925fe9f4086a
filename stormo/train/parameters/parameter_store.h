#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/event.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>
#include <stormo/protocol/server/shard_state.h>
#include <stormo/train/optimizer/fused_optimizer.h>
#include <stormo/train/state/safetensors.h>
#include <stormo/train/state/tensor_piece.h>

namespace stormo::tensor {
class TensorParallelGroup;
}  // namespace stormo::tensor

namespace stormo::train {

class AxisGroups;
class PopulationStore;
class StageLink;

/// A range of a model's list of parameters.
struct ParameterRange {
  std::size_t first = 0;
  std::size_t last = 0;  ///< one past the end
  bool operator==(const ParameterRange&) const = default;
};
inline std::size_t size_of(const ParameterRange& range) { return range.last - range.first; }

/// Called for every action by the code that performs it.
using DoneAction = std::function<void(const plan::Action&)>;

/// Gives the parameters of one segment of a model the values that training starts with, the same on
/// all ranks. A collective of all ranks. Throws Error.
using MaterializeSegment = std::function<void(std::size_t segment)>;

/// What a store was made for.
struct MadeFor {
  const AxisGroups* groups = nullptr;
  plan::StepPlan plan = {};  ///< this rank's part
  OptimizerOptions::Kind rule = {};
  std::size_t slots = 0;       ///< of the optimizer: optim::num_slots()
  bool worker_copies = false;  ///< a worker of servers trains a copy of its own
};

/// Keeps gathered parameters readable while it lives; null: they always are.
using GatheredParameters = std::shared_ptr<void>;

/// What a rank holds of a model and its optimizer's state between steps: it is read, saved and
/// resumed from. All functions are collectives unless noted otherwise.
class HeldState {
 public:
  virtual ~HeldState() = default;
  HeldState(const HeldState&) = delete;
  HeldState& operator=(const HeldState&) = delete;

  /// While the result lives, the module's parameters are whole and equal on all ranks, and its own
  /// forward can be used. Between steps only; no step may start while it lives. It does not change
  /// what is trained later.
  virtual GatheredParameters gather() { return nullptr; }
  /// The same for the parameters that `segments` read, and their forward. One range at a time.
  virtual GatheredParameters gather_segments(plan::Range /*segments*/) { return gather(); }
  /// Makes the module keep its values after this object is destroyed; otherwise they are undefined
  /// then, unless always_readable(). No training is possible afterwards.
  virtual void keep_values() {}
  /// What this rank must save where the state is not whole(). The pieces of all ranks cover every
  /// trainable parameter and its optimizer state exactly once; some may be empty. Frozen parameters
  /// are among them unless always_readable(): then the module has them, the same on all ranks. A
  /// parameter has no optimizer state before its first update. The tensors change with the next
  /// update. Not a collective.
  virtual std::vector<TensorPiece> pieces() const { return {}; }
  /// Reads the optimizer state of the elements that this rank owns, before the first step. The
  /// parameters are those that the module had when the store was made. Training continues bit for
  /// bit as if it had not ended, on the same ranks. Not a collective.
  virtual Status load_state(const ReadState&) { return {}; }
  /// Before a save: what each rank has of its own, and a checkpoint has once, becomes the mean of
  /// all.
  virtual Status share_state() { return {}; }
  /// What codecs of gradients have lost on this rank and keep for the next step, by what it is of;
  /// copies. Not a collective.
  virtual TensorMap residuals() const { return {}; }
  /// Before set_plan(): goes on with these, as far as the plan cuts gradients alike. Not a
  /// collective.
  virtual void keep_residuals(TensorMap /*kept*/) {}

  // Not collectives.
  /// Whether every rank has the whole state. Then use its optimizer to save and load it, else
  /// pieces() and load_state().
  bool whole() const { return whole_; }
  /// Whether the module's parameters can be read at any time between steps. Otherwise they can be
  /// read only while the object that gather() returns lives.
  bool always_readable() const { return always_readable_; }

 protected:
  explicit HeldState(bool whole = true, bool always_readable = true)
      : whole_(whole), always_readable_(always_readable) {}

 private:
  bool whole_;
  bool always_readable_;
};

/// A worker of servers: what a store does besides where they hold the parameters. No function is a
/// collective.
class ServedWorker {
 public:
  virtual ~ServedWorker() = default;
  /// Performs kPush: gives the gradients of the range, which count for `weight` in an average, to
  /// the servers, which update. rate.loss is that of the step.
  virtual Status push(const plan::Action& action, const StepRate& rate, double weight) = 0;
  /// With the policy portions: what the next push is the gradient of. Batches are counted from the
  /// first step of the run.
  virtual void begin_portion(int portion, std::uint64_t batch) = 0;
  /// This rank makes no steps until join(), and nobody waits for it.
  virtual Status leave() = 0;
  virtual Status join() = 0;
  /// Whether this rank's events were recorded, as far as that was wanted.
  virtual Status record_status() const = 0;
  /// A shard of the servers, as they see it.
  struct ShardReport {
    std::uint64_t bytes = 0;  ///< of its parameters
    protocol::ShardState state;
  };
  /// Of all shards, in order.
  virtual Result<std::vector<ShardReport>> shard_reports() const = 0;
};

/// What a rank has of a model that is cut.
struct ModelCut {
  /// Sends tensors to other stages of a pipeline; null: there is none.
  StageLink* stages = nullptr;
  /// Computes layers together; null: none.
  const tensor::TensorParallelGroup* split = nullptr;
};

/// The parameters of a model and their optimizer state on one rank: replicated, in one copy per
/// host, or sharded. It performs the actions of a plan that depend on this placement; the Runner
/// does not depend on strategies otherwise. All functions are collectives unless noted otherwise.
/// What every store guarantees is tested in tests/unit/train/store_conformance_test.cc.
///
/// A store is made where the module has the same values on all ranks. Training starts with these.
/// Where ranks get parts of a model, a store can be made of a module without values:
/// MaterializeSegment brings those of one segment at a time, of which the rank keeps its part.
/// After every step the values are equal on all ranks; where parameters diverge, after every
/// kAverage; with a centre, or the best member of a population, while gather() shows it.
class ParameterStore : public HeldState {
 public:
  /// Sets the function that is called for each action when it is done. Not a collective.
  void on_done(DoneAction done) { done_ = std::move(done); }
  /// Receives Events of parts of an action; null: none. Borrowed. Not a collective.
  void set_sink(Sink* sink) { sink_ = sink; }

  /// What a plan that it follows has to fit, see check_layout(); nothing: it takes any of one rank
  /// without servers. Not collectives.
  void set_made_for(MadeFor made) { made_for_ = std::move(made); }
  const std::optional<MadeFor>& made_for() const { return made_for_; }
  /// From the next step on perform() gets the actions of `plan`, which check_layout() has accepted.
  /// Not a collective, except before the first step.
  virtual void set_plan(const plan::StepPlan& /*plan*/) {}
  /// Called before a backward. `last`: no later micro-batch adds to its gradients. During such a
  /// backward, asynchronous reductions start when their gradients are complete. Not a collective.
  virtual void begin_backward(bool /*last*/) {}
  /// Performs an action that moves or frees parameters or gradients. Reduced gradients are
  /// sum(weight_r * g_r) / sum(weight_r). An asynchronous action may still be running when this
  /// returns: make_readable(), perform(), gradient_norm() and update() wait for the results that
  /// they need. kAverage: `weight` is the number of this rank's samples since the last one.
  virtual Status perform(const plan::Action& action, double weight) = 0;
  /// Blocks until the parameters that `segments` read are available. Not a collective.
  virtual Status make_readable(plan::Range /*segments*/) { return {}; }
  /// Waits until all reductions of the step that were started are complete.
  virtual Status finish_gradients() { return {}; }
  /// The 2-norm of the whole gradient, equal on all ranks. After the plan has reduced or shared
  /// all gradients and before it updates; any number of times.
  virtual Result<double> gradient_norm() = 0;
  /// Performs kUpdate on the part of the range that this rank owns. Not a collective, except for
  /// rules that need norms.
  virtual Status update(const ParameterRange& range, const StepRate& rate) = 0;
  /// Called at the end of a step: frees the gradients of the module. Not a collective.
  virtual void zero_grad() { optimizer().zero_grad(); }
  virtual Optimizer& optimizer() = 0;
  /// The optimizer with its state, for a store over other ranks; null: it stays with this one. Only
  /// destruction may follow. Not a collective.
  virtual std::unique_ptr<Optimizer> take_optimizer() { return nullptr; }

  // Not collectives.
  /// Null without servers of the parameters.
  ServedWorker* served() const { return served_; }
  /// Null where ranks are no members of a population.
  PopulationStore* population() const { return population_; }
  const ModelCut& cut() const { return cut_; }
  /// Where parameters diverge: this rank's part of the sum over replicas of |w_r - mean w|^2,
  /// before the last kAverage.
  double consensus_squares() const { return consensus_squares_; }

 protected:
  explicit ParameterStore(bool whole = true, bool always_readable = true)
      : HeldState(whole, always_readable) {}
  void set_served(ServedWorker* served) { served_ = served; }
  void set_population(PopulationStore* population) { population_ = population; }
  void set_cut(const ModelCut& cut) { cut_ = cut; }
  void set_consensus_squares(double squares) { consensus_squares_ = squares; }
  /// Calls the listener of on_done().
  void done(const plan::Action& action) const {
    if (done_) done_(action);
  }
  Sink* sink() const { return sink_; }

 private:
  std::optional<MadeFor> made_for_;
  DoneAction done_;
  Sink* sink_ = nullptr;
  ServedWorker* served_ = nullptr;
  PopulationStore* population_ = nullptr;
  ModelCut cut_;
  double consensus_squares_ = 0;
};

}  // namespace stormo::train
