#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// The rule by which averages of parameters become the parameters with which all replicas go on.
/// With g = x - mean of the replicas, where x is what they had in common at the beginning of the
/// period:
struct OuterOptimizer {
  enum class Kind : std::uint8_t {
    kNone,      ///< the averages themselves
    kNesterov,  ///< DiLoCo: v <- momentum * v + g, x <- x - lr * (g + momentum * v)
    /// u <- momentum * u + g / r, x <- x - lr * r * u, where r is the learning rate of the update
    /// before
    kSlowMo,
  } kind = Kind::kNone;
  double lr = -1;        ///< above 0; -1: 0.7, of kSlowMo 1
  double momentum = -1;  ///< at least 0 and below 1; -1: 0.9, of kSlowMo 0.5
  bool operator==(const OuterOptimizer&) const = default;
};

/// Names as in recipes, in the order of the enumerators.
const std::vector<std::string>& outer_optimizer_names();

/// The same with the numbers that -1 stands for.
OuterOptimizer with_defaults(const OuterOptimizer& outer);

/// What is wrong with its numbers, all of it; empty: nothing.
std::string wrong_with(const OuterOptimizer& outer);

/// Behind each average comes a step of the outer optimizer, on every rank alike. Apply it after
/// parameter_averaging(). Fails with kBadPlan for a plan that averages no parameters.
Pass outer_update();

}  // namespace stormo::parallel
