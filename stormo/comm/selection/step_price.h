#pragma once

#include <cstddef>
#include <span>

#include <stormo/base/status.h>
#include <stormo/comm/selection/step_model.h>

namespace stormo::comm {

/// What a step takes in seconds, on average where not every step communicates alike.
struct StepPrice {
  double seconds = 0;
  double alone = 0;  ///< the same if nothing that ranks exchange took any time
};

/// A step hides its communication if it takes at most this times as long as without.
inline constexpr double kHidden = 1.05;
inline bool hides(const StepPrice& p) { return p.seconds <= kHidden * p.alone; }

/// Of a step that is simulated to take `seconds`. The simulation of a plan that averages all
/// parameters at once is that of a step with an average, and with those of all slots of the
/// optimizer and among some ranks; other steps have none, or some of them.
Result<StepPrice> price_of(StepModel& model, const StepInput& step, double seconds);

/// Which of several ways to take, of which the first one loses least: the first that hides its
/// communication; if none does, the fastest one. A pure function; `ways` is not empty.
std::size_t least_lossy(std::span<const StepPrice> ways);

}  // namespace stormo::comm
