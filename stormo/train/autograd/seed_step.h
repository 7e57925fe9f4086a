#pragma once

#include <cstdint>

#include <stormo/base/ids.h>

namespace stormo::train {

/// Seeds libtorch's generator for one step of a run. Its state is then a function of seed, step and
/// rank: no checkpoint has to hold it, and ranks draw different numbers.
void seed_step(std::uint64_t seed, std::int64_t step, Rank rank);

}  // namespace stormo::train
