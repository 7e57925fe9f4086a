#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/train/optimizer/fused_optimizer.h>

namespace stormo::train {

/// Updates of 1-bit Adam, by the state of an optimizer of rule kAdam or kAdamW. A parameter has so
/// many updates by the rule itself. From then on v, the mean of squares, and both bias corrections
/// stay as they are. Each rank adds its own gradient to the momentum m that all have in common:
/// m_r = beta1 m + (1 - beta1) g_r. Ranks average m_r / d, where d is the denominator of an update,
/// in place of gradients, and d times the average is the next momentum of all. A codec with error
/// feedback may lose something of it on the way: an update is linear in the average, and so what
/// comes later makes up for it. With v, which has squares, it would not.
///
/// The paper sends m_r itself. Where v of neighbours differs by orders of magnitude, the error of a
/// code, which is as large for all of a block, is then divided by a tiny d: training diverges.
///
/// A number whose v is 0 had no gradient before: from then on nothing but weight decay changes it.
///
/// Paper: H. Tang et al., "1-bit Adam: communication efficient large-scale training with Adam's
/// convergence speed", ICML 2021.
class FrozenAdam {
 public:
  /// `optimizer` is borrowed. Throws Error(kInvalidArgument) for another rule, and for parameters
  /// of 16 bits.
  FrozenAdam(FusedOptimizer& optimizer, std::int64_t updates);

  /// The gradients of the parameters [first, last), which this rank has computed, become what ranks
  /// average: m_r / d of frozen parameters, also of those without a gradient. Once in a step,
  /// before the average.
  void prepare_gradients(std::size_t first, std::size_t last);
  /// As Optimizer::step(), by these averages. Those of frozen parameters are not scaled.
  Status step(const StepRate& rate, std::size_t first, std::size_t last);

 private:
  void update(double lr, std::size_t i, std::int64_t updates,
              const FusedOptimizer::Values& values) const;

  FusedOptimizer& optimizer_;
  std::int64_t updates_;
};

}  // namespace stormo::train
