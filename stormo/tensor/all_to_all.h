#pragma once

#include <cstdint>
#include <vector>

#include <ATen/core/Tensor.h>

#include <stormo/comm/communicator.h>

namespace stormo::tensor {

/// A collective: rank i gets `to[i]`, a flat tensor, maybe empty; all are of one type. Returns what
/// arrives, `from[i]` elements of rank i, one rank's behind the other's. Null `ranks`: this rank is
/// alone, and zeros arrive. Copies what is sent once. Blocks. Throws Error, which says `what` it
/// was.
at::Tensor all_to_all(comm::Communicator* ranks, const std::vector<at::Tensor>& to,
                      const std::vector<std::int64_t>& from, const char* what);

}  // namespace stormo::tensor
