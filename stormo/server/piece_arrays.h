#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include <stormo/optim/update.h>

namespace stormo::server {

/// Where the arrays of one piece lie in one version of a shard: `weights`, and the optimizer's
/// state (`slots`, with the number of updates of the piece). Borrowed.
struct PieceArrays {
  std::byte* weights = nullptr;
  std::array<std::byte*, optim::kMaxSlots> slots{};
  std::byte* mean_square = nullptr;  ///< of gradients, see protocol::DelayCompensation; or null
  std::int64_t updates = 0;
  /// Of a coordinator, from vector 1 on. They are not versions: see optim::VectorSpace.
  std::vector<std::byte*> vectors = {};
};

}  // namespace stormo::server
