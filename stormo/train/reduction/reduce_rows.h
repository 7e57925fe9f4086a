#pragma once

#include <torch/types.h>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::train {

/// A collective; blocks. Replaces the gradient g_r of `table` on each rank r by sum(share_r * g_r),
/// a coalesced sparse tensor. An undefined gradient counts as one without rows. Sends the rows and
/// their indices, or the whole table if that is less (comm::all_reduce_rows).
Status reduce_rows(comm::Communicator& ranks, const torch::Tensor& table, double share);

}  // namespace stormo::train
