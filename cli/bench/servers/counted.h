#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include <stormo/comm/communicator.h>
#include <stormo/server/shard.h>

namespace stormo::cli {

/// Whether every element of every key is the number of all pushes, as far as a float32 can count.
/// Each shard has one key, and each push adds 1. `pushes`: those of this rank to each shard;
/// `shards`: as this rank sees them, may be none. A collective.
Result<bool> counts_all_pushes(comm::Communicator& world, std::uint64_t pushes,
                               std::span<server::Shard* const> shards);

/// The pointers, for a call.
template <class T>
std::vector<server::Shard*> pointers(const std::vector<std::unique_ptr<T>>& shards) {
  std::vector<server::Shard*> out;
  for (const auto& shard : shards) out.push_back(shard.get());
  return out;
}

}  // namespace stormo::cli
