#pragma once

#include <functional>
#include <vector>

#include <cli/bench/servers/options.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// What the ranks do in a loop of a round; a rank that does nothing has no `turn`.
struct TurnLoop {
  std::vector<double>& rates;  ///< turns of all ranks together per second, by round
  std::function<Status()> turn;
};
/// All loops in every round. A collective.
Status measure_turns(comm::Communicator& world, const BenchServersOptions& options,
                     const std::vector<TurnLoop>& loops);

}  // namespace stormo::cli
