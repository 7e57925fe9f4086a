#include <stormo/comm/group.h>
#include <stormo/transport/inproc/inproc.h>

namespace stormo::comm {

Result<std::vector<std::unique_ptr<Communicator>>> make_inproc_group(int n) {
  if (n < 1 || n > transport::HostRegion::kMaxRanks) {
    return invalid_argument("a group of threads needs 1 to 1024 ranks");
  }
  STORMO_ASSIGN_OR_RETURN(auto ranks, transport::make_inproc_fabric(n));
  std::vector<std::unique_ptr<Communicator>> group;
  for (int r = 0; r < n; ++r) {
    transport::InprocRank& mine = ranks[static_cast<std::size_t>(r)];
    Group::Parts parts;
    parts.rank = r;
    parts.ranks_per_host = {n};
    parts.health = mine.health;
    parts.host_group = std::move(mine.group);
    parts.local = std::move(mine.transport);
    group.push_back(std::make_unique<Group>(std::move(parts)));
  }
  return group;
}

}  // namespace stormo::comm
