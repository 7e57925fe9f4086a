#include <stormo/train/agreement/minority.h>

#include <bit>
#include <cstddef>

#include <stormo/train/agreement/replica_healing.h>

namespace stormo::train {

Result<std::vector<Rank>> find_minority(comm::Communicator& world, std::span<const int> part_of,
                                        std::uint64_t hash) {
  std::vector<std::int64_t> mine = {std::bit_cast<std::int64_t>(hash)};
  std::vector<std::int64_t> all(static_cast<std::size_t>(world.size()));
  STORMO_RETURN_IF_ERROR(world.all_gather(mine, all));
  std::vector<Rank> out;
  for (const WrongBlocks::Block& w : find_wrong_blocks(all, 1, part_of).wrong) {
    out.push_back(w.rank);
  }
  return out;
}

}  // namespace stormo::train
