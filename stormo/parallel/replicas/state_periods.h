#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/parallel/pass.h>

namespace stormo::parallel {

/// What is wrong with `periods`, all of it, where parameters are averaged in one of every `period`
/// steps; empty: nothing.
std::string wrong_with_state_periods(const std::vector<std::int64_t>& periods, int period);

/// Parameters and each slot of the optimizer's state have averages by themselves: slot i in one of
/// every `periods[i]` steps, a multiple of those from one average of the parameters to the next. So
/// ranks meet no more often. Where all meet anyway, as before an evaluation, all of it is averaged.
/// Apply it after parameter_averaging() with state, before outer_update(). Fails with
/// kInvalidArgument for what is wrong_with_state_periods(), with kBadPlan for a plan that averages
/// no state.
Pass state_periods(const std::vector<std::int64_t>& periods);

}  // namespace stormo::parallel
