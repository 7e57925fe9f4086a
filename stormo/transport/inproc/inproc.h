#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/transport/shm/host_group.h>

namespace stormo::transport {

/// The objects of one rank of an in-process fabric.
struct InprocRank {
  std::shared_ptr<Health> health;  ///< shared by all ranks of the fabric
  std::unique_ptr<HostGroup> group;
};

/// Makes `n` ranks that are threads of this process, with the same algorithms and synchronisation
/// as shm/. Element r is used by one thread at a time. The arenas are never freed, because tensors
/// may outlive the fabric. `health`: that of the group; null: a new one. `arena_bytes`: address
/// space (not memory) of each rank.
Result<std::vector<InprocRank>> make_inproc_fabric(int n, std::shared_ptr<Health> health = nullptr,
                                                   std::uint64_t arena_bytes = std::uint64_t{4}
                                                                               << 30);

}  // namespace stormo::transport
