#pragma once

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// Replaces the gradient g_r of `table` on each rank r by sum(share_r * g_r), a coalesced sparse
/// tensor; an undefined one has no rows. Rows and their numbers travel, or the whole table where
/// that is less (comm::all_reduce_rows). A collective.
Status reduce_rows(comm::Communicator& ranks, const torch::Tensor& table, double share);

}  // namespace stormo::train
