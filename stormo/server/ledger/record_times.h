#pragma once

#include <span>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/server/virtual_servers.h>
#include <stormo/server/ledger/shard_record.h>

namespace stormo::server {

/// What took how long in a recorded run, for a VirtualCluster without latency.
struct RecordedTimes {
  std::vector<std::vector<protocol::StepTime>> steps;  ///< by worker; see VirtualCluster::times
  std::vector<Duration> leaves;                        ///< by worker; see VirtualCluster::leaves
};

/// With one shard, and no evaluation or checkpoint in between, the virtual run has the order of the
/// real one, with every policy: times that contradict the recorded order, since a clock was read a
/// little early or late, are put right. Where a worker waited for others at a read, the wait counts
/// as rest; at a push, as computing. kCorrupt for a worker without a step.
Result<RecordedTimes> recorded_times(std::span<const std::vector<ShardEvent>> events);

/// All events with their workers, in an order that the run may have had: any one that agrees with
/// the order of each worker and each shard. `events`: by worker. kCorrupt if there is none.
Result<std::vector<std::pair<int, ShardEvent>>> recorded_order(
    std::span<const std::vector<ShardEvent>> events);

}  // namespace stormo::server
