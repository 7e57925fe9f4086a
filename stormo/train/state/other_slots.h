#pragma once

#include <string_view>

namespace stormo::train {

/// In checkpoints a slot that is of no optimizer: the mean square of gradients that servers keep
/// for protocol::DelayCompensation. Who has no such servers leaves it out.
inline constexpr std::string_view kDelaySlot = "delay_mean_square";

}  // namespace stormo::train
