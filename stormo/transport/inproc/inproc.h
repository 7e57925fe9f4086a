#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/transport/shm/host_group.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

/// What one rank of an in-process fabric owns.
struct InprocRank {
  std::shared_ptr<Health> health;  ///< shared by all ranks of the fabric
  std::unique_ptr<HostGroup> group;
  std::unique_ptr<Transport> transport;
};

/// `n` ranks as threads of this process, over one mapping: the algorithms and the synchronisation
/// of shm/, without processes. Element r is used by one thread at a time. The arenas are leaked:
/// tensors may outlive the fabric. `health`: of what the fabric belongs to; null: a fresh one.
/// `arena_bytes`: of each rank; address space, not memory.
Result<std::vector<InprocRank>> make_inproc_fabric(int n, std::shared_ptr<Health> health = nullptr,
                                                   std::uint64_t arena_bytes = std::uint64_t{4}
                                                                               << 30);

}  // namespace stormo::transport
