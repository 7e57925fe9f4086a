#include <stormo/transport/inproc/inproc.h>

namespace stormo::transport {

Result<std::vector<InprocRank>> make_inproc_fabric(int n, std::shared_ptr<Health> health,
                                                   std::uint64_t arena_bytes) {
  STORMO_ASSIGN_OR_RETURN(HostRegion made, HostRegion::anonymous(n));
  const auto region = std::make_shared<HostRegion>(std::move(made));
  if (health == nullptr) health = std::make_shared<Health>();
  std::vector<Arena*> arenas;
  std::vector<std::byte*> bases;
  for (int i = 0; i < n; ++i) {
    STORMO_ASSIGN_OR_RETURN(auto arena,
                            Arena::create({.capacity_bytes = arena_bytes, .single_process = true}));
    bases.push_back(arena->base());
    arenas.push_back(&Arena::immortal(std::move(arena)));
  }
  std::vector<InprocRank> ranks;
  for (int i = 0; i < n; ++i) {
    HostParts parts{.rank = i,
                    .cores = usable_cores(),
                    .region = region,
                    .arena = arenas[static_cast<std::size_t>(i)],
                    .arena_bases = bases,
                    .peer_arenas = {}};
    ranks.push_back({health, std::make_unique<HostGroup>(std::move(parts), health)});
  }
  return ranks;
}

}  // namespace stormo::transport
