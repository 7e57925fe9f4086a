#pragma once

#include <memory>
#include <utility>
#include <vector>

#include <stormo/server/link/server_link.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// A shard of a server's process on this host: its memory is mapped here, and reads and pushes are
/// done here. Every call fails when the server is lost.
class MappedShard final : public SharedShard {
 public:
  MappedShard(std::shared_ptr<ServerLink> link, transport::MemoryFile memory,
              std::vector<ShardPiece> pieces, const ShardOptions& options, int worker)
      : SharedShard(std::move(pieces), options, worker,
                    {.policy = transport::wait_policy(options.workers, transport::usable_cores()),
                     .status = [link = std::move(link)] { return link->status_while_waiting(); }}),
        memory_(std::move(memory)) {
    attach(memory_.data());
  }

 private:
  transport::MemoryFile memory_;
};

}  // namespace stormo::server
