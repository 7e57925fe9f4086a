#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Those that have another hash than most that hold the same part of a state; of a part none where
/// all are equal, or no majority says which of them are right. `part_of`: by rank, as
/// find_wrong_blocks() has it. Equal on all ranks. A collective.
Result<std::vector<Rank>> find_minority(comm::Communicator& world, std::span<const int> part_of,
                                        std::uint64_t hash);

}  // namespace stormo::train
