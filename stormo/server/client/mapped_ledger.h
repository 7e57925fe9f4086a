#pragma once

#include <memory>
#include <utility>

#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/link/server_link.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// The ledger of a server's process on this host, as MappedShard.
class MappedLedger final : public SharedLedger {
 public:
  MappedLedger(std::shared_ptr<ServerLink> link, transport::MemoryFile memory, int workers,
               int worker)
      : SharedLedger(workers, worker,
                     [link = std::move(link)] { return link->status_while_waiting(); }),
        memory_(std::move(memory)) {
    attach(memory_.data());
  }

 private:
  transport::MemoryFile memory_;
};

}  // namespace stormo::server
