#pragma once

#include <cstddef>
#include <string>

#include <stormo/base/status.h>
#include <stormo/train/optimizer.h>

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

  /// Brackets a backward pass of loss that counts for `weight`; more passes of the step follow when
  /// `last` is false. What a store reduces while backward goes on it starts here. Not a collective.
  virtual void begin_backward(double weight, bool last) = 0;
  /// The rest of kAllReduce or kReduceScatter: afterwards the gradients of the range, or this
  /// rank's part of them, are sum(weight_r * g_r) / sum(weight_r).
  virtual Status reduce(const ParameterRange& range, double weight) = 0;
  /// The 2-norm of the whole gradient, after it was reduced.
  virtual Result<double> gradient_norm() = 0;
  /// kUpdate, of what this rank owns of the range. Not a collective, but for rules that need norms.
  virtual Status update(const ParameterRange& range, const StepRate& rate) = 0;
  /// kAllGather: afterwards the next forward may begin.
  virtual Status gather() { return {}; }
  /// Drops the gradients, when no other rank needs them any more. Not a collective.
  void zero_grad() { optimizer().zero_grad(); }

  virtual Optimizer& optimizer() = 0;
  /// For logs: "gradients are reduced at the end of backward".
  virtual std::string describe() const = 0;

 protected:
  ParameterStore() = default;
};

}  // namespace stormo::train
