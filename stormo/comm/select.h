#pragma once

#include <vector>

#include <stormo/base/ids.h>
#include <stormo/plan/schedule.h>

namespace stormo::comm {

/// The schedule to run for `goal` among hosts with these numbers of ranks. Every rank chooses
/// alike.
plan::Schedule select(const plan::Goal& goal, const std::vector<int>& ranks_per_host);

}  // namespace stormo::comm
