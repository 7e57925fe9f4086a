#pragma once

#include <cstdint>

#include <ATen/core/Tensor.h>

#include <stormo/c10d/work.h>
#include <stormo/comm/communicator.h>

namespace stormo::c10d {

/// tensor = the sum of the ranks' sparse tensors, or its average. The ranks gather their numbers of
/// entries, and send indices and values to every other as messages with this tag. Each adds up what
/// all have, in the order of ranks. Does not block; seals `work`.
void sum_sparse(comm::Communicator& group, const c10::intrusive_ptr<StormoWork>& work,
                const at::Tensor& tensor, bool averages, std::uint32_t tag);

}  // namespace stormo::c10d
