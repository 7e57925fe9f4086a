#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/server/shard/host_shard.h>
#include <stormo/train/server_store/served_parameters.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::train {

/// The shards of a run with parameter servers, in private memory, as each worker uses them.
class PrivateShards {
 public:
  /// With the values that the module has.
  static Result<PrivateShards> create(const ServedParameters& served, int workers);

  int shards() const { return static_cast<int>(memory_.size()); }
  server::HostShard& at(int worker, int shard) {
    return *of_worker_[static_cast<std::size_t>(worker)][static_cast<std::size_t>(shard)];
  }
  /// The current versions of all shards.
  std::vector<server::Shard::View> look();

 private:
  std::vector<transport::MemoryFile> memory_;  // by shard
  std::vector<std::vector<std::unique_ptr<server::HostShard>>> of_worker_;
};

}  // namespace stormo::train
