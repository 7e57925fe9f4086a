#pragma once

#include <memory>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::comm {

/// A collective; blocks. Groups by colour, as MPI_Comm_split: ranks of one colour get a group of
/// their own, ordered by `key` and then by rank. A rank with a negative colour (MPI_UNDEFINED) gets
/// null. Colours need not be consecutive.
///
/// In a Stormo group the ranks of a host are next to each other, so a group keeps the order of
/// `ranks`: keys that ask for another one are kInvalidArgument on all ranks. Give the rank, or the
/// same number on all. Cost: an all_gather of 16 bytes per rank, and a subgroup() for each colour.
Result<std::unique_ptr<Communicator>> split(Communicator& ranks, std::int64_t color,
                                            std::int64_t key, Deadline by);

}  // namespace stormo::comm
