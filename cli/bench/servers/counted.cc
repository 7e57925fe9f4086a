#include <cli/bench/servers/counted.h>

#include <algorithm>

namespace stormo::cli {
namespace {

/// Where a float32 stays when 1 is added.
constexpr std::int64_t kMostCounted = 1 << 24;

}  // namespace

Result<bool> counts_all_pushes(comm::Communicator& world, std::uint64_t pushes,
                               std::span<server::Shard* const> shards) {
  std::int64_t all = static_cast<std::int64_t>(pushes);
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&all, 1), comm::ReduceOp::kSum));
  const auto expected = static_cast<float>(std::min(all, kMostCounted));
  double wrong = 0;
  for (server::Shard* shard : shards) {
    STORMO_ASSIGN_OR_RETURN(const server::Shard::View view, shard->look());
    const std::span key(reinterpret_cast<const float*>(view.pieces[0]),
                        static_cast<std::size_t>(shard->pieces()[0].elements()));
    if (std::ranges::count(key, expected) != std::ssize(key)) wrong = 1;
  }
  STORMO_RETURN_IF_ERROR(world.all_reduce(std::span(&wrong, 1), comm::ReduceOp::kMax));
  return wrong == 0;
}

}  // namespace stormo::cli
