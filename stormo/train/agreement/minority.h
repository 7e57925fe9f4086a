#pragma once

#include <cstdint>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Those that have another hash than most; nothing where all are equal, or no majority says which
/// of them are right. Equal on all ranks. A collective.
Result<std::vector<Rank>> find_minority(comm::Communicator& world, std::uint64_t hash);

}  // namespace stormo::train
