#pragma once

#include <cstdint>

#include <stormo/base/status.h>
#include <stormo/comm/group/group.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/plan/topology.h>

namespace stormo::comm {

/// What an all_reduce took.
struct TimedReduction {
  std::int64_t bytes = 0;
  double seconds = 0;
};

/// `links` with another latency and bandwidth between hosts, or inside of the only host: those with
/// which the model of collectives says that a short and a long all_reduce take as long as they did.
/// Of the only host they include what it takes to add numbers up. The latency stays as it is where
/// the long one took less than it says. A pure function.
Result<plan::Topology> fitted(plan::Topology links, const Selection& selection,
                              const TimedReduction& brief, const TimedReduction& lengthy);

/// The hosts of a group, and its links as all_reduces show them, which run for about a second where
/// links are slow. Of one rank nothing is measured. A collective; equal results on all ranks.
Result<plan::Topology> measure_links(Group& world);

}  // namespace stormo::comm
