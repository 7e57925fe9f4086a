#include <stormo/train/simulate/private_shards.h>

#include <utility>

namespace stormo::train {

using server::HostShard;

Result<PrivateShards> PrivateShards::create(const ServedParameters& served, int workers) {
  PrivateShards out;
  out.of_worker_.resize(static_cast<std::size_t>(workers));
  for (int w = 0; w < workers; ++w) {
    for (std::size_t s = 0; s < served.shards(); ++s) {
      out.of_worker_[static_cast<std::size_t>(w)].push_back(
          served.make_shard(s, w, {.policy = {}}));
    }
  }
  for (std::size_t s = 0; s < served.shards(); ++s) {
    HostShard& first = *out.of_worker_[0][s];
    STORMO_ASSIGN_OR_RETURN(transport::MemoryFile memory,
                            transport::MemoryFile::anonymous(first.bytes()));
    first.create(memory.data());
    STORMO_RETURN_IF_ERROR(served.copy_values_to(first, s));
    for (auto& of_worker : out.of_worker_) of_worker[s]->attach(memory.data());
    out.memory_.push_back(std::move(memory));
  }
  return out;
}

std::vector<server::Shard::View> PrivateShards::look() {
  std::vector<server::Shard::View> out;
  for (int s = 0; s < shards(); ++s) out.push_back(at(0, s).look().take_or_throw());
  return out;
}

}  // namespace stormo::train
