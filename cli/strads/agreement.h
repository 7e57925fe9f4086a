#pragma once

#include <string>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

/// A collective. `facts`: what must be equal on all ranks, one line each; or why this rank cannot
/// go on. OK on all ranks when all have equal facts. Else a failure on all ranks with the same
/// text, which names ranks, hosts and what differs: kRefused, or where all have the same problem,
/// that problem; the group still works. Cost: 8 bytes from each rank if all are equal.
Status agree_on(comm::Communicator& world, const Result<std::string>& facts);

}  // namespace stormo::cli
