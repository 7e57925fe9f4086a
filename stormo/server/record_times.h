#pragma once

#include <span>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/protocol/server/virtual_servers.h>
#include <stormo/server/shard_record.h>

namespace stormo::server {

/// The times of the steps of a recorded run, by worker, for a VirtualCluster without latency. With
/// policy sync, async or n_softsync, one shard, and no evaluation or checkpoint in between, the
/// virtual run has the order of the real one: times that contradict the recorded order, since a
/// clock was read a little early or late, are put right. Where a worker waited for others at a
/// read, the wait counts as rest. kCorrupt for a worker without a step.
Result<std::vector<std::vector<protocol::StepTime>>> step_times(
    std::span<const std::vector<ShardEvent>> events);

}  // namespace stormo::server
