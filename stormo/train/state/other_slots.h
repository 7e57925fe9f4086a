#pragma once

#include <string_view>

namespace stormo::train {

// In checkpoints slots that are of no optimizer. Who does not need them leaves them out.

/// The mean square of gradients that servers keep
/// for protocol::DelayCompensation.
inline constexpr std::string_view kDelaySlot = "delay_mean_square";

/// What codecs of gradients have lost, of one rank: "optimizer.residual.rank<r>.<key>".
inline constexpr std::string_view kResidualSlot = "residual";

/// What an outer optimizer keeps, see FusedOptimizer::keep_outer_momentum().
inline constexpr std::string_view kOuterMomentumSlot = "outer_momentum";

}  // namespace stormo::train
