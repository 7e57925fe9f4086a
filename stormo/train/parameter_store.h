#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/train/fused_optimizer.h>
#include <stormo/train/task.h>
#include <stormo/train/tensor_piece.h>

namespace stormo::train {

/// Some of a model's parameters, by their place in its list.
struct ParameterRange {
  std::size_t first = 0;
  std::size_t last = 0;  ///< one past the end
  bool operator==(const ParameterRange&) const = default;
};

/// A model's parameters and their optimizer state as one rank holds them: replicated, in one copy
/// per host, or sharded. What a plan's collectives and updates mean for it; the Runner knows no
/// more of strategies. All functions are collectives unless they say otherwise.
class ParameterStore {
 public:
  virtual ~ParameterStore() = default;
  ParameterStore(const ParameterStore&) = delete;
  ParameterStore& operator=(const ParameterStore&) = delete;

  /// Before a forward and backward pass of a loss that counts for `weight`; more passes of the step
  /// follow when `last` is false. What a store reduces while backward goes on it starts there.
  virtual void begin_pass(double weight, bool last) = 0;
  virtual torch::Tensor forward(const Task& task, const torch::Tensor& input) {
    return task.forward(input);
  }
  /// Whether forward() and its backward gather and reduce each segment when it is its turn: then
  /// the actions of single segments need nothing of their own.
  virtual bool by_segment() const { return false; }
  /// In place of a step's passes, on a rank that has no samples.
  virtual void skip_passes() {}
  /// The rest of kReduceScatter and kAllReduce, in the plan's order: the gradients of the range, or
  /// this rank's part of them, become sum(weight_r * g_r) / sum(weight_r). They may still travel
  /// when this returns: gradient_norm() waits for all of them, update() for each before its use.
  virtual Status reduce_scatter(const ParameterRange&, double /*weight*/) { return {}; }
  virtual Status all_reduce(const ParameterRange&, double /*weight*/) { return {}; }
  /// The 2-norm of the whole gradient, after it was reduced.
  virtual Result<double> gradient_norm() = 0;
  /// kUpdate, of what this rank owns of the range. Not a collective, but for rules that need norms.
  virtual Status update(const ParameterRange& range, const StepRate& rate) = 0;
  /// kAllGather: afterwards the next forward may begin.
  virtual Status gather() { return {}; }
  /// Drops the gradients, when no other rank needs them any more. Not a collective.
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

  /// For logs: "gradients are reduced at the end of backward". Not a collective.
  virtual std::string describe() const = 0;

 protected:
  ParameterStore() = default;
};

}  // namespace stormo::train
