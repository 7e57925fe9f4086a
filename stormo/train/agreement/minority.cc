#include <stormo/train/agreement/minority.h>

#include <bit>
#include <cstddef>

#include <stormo/comm/agreement/agreement.h>

namespace stormo::train {

Result<std::vector<Rank>> find_minority(comm::Communicator& world, std::uint64_t hash) {
  std::vector<std::int64_t> mine = {std::bit_cast<std::int64_t>(hash)};
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(mine, all));
  const comm::Verdict verdict = comm::majority_vote(all);
  return verdict.majority ? verdict.differing : std::vector<Rank>();
}

}  // namespace stormo::train
