#pragma once

#include <memory>
#include <utility>

#include <stormo/server/ledger.h>
#include <stormo/server/ledger/shared_ledger.h>
#include <stormo/server/link/server_link.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {

/// The ledger of a server's process on this host, as MappedShard.
class MappedLedger final : public Ledger {
 public:
  MappedLedger(std::shared_ptr<ServerLink> link, transport::MemoryFile memory, int workers,
               int worker);

  Status deal(const Terms& terms) override;
  Result<Terms> terms() override;
  Result<Turn> next(const Outcome& outcome) override;
  Result<Turn> look() override;
  Status wait(Deadline by) override;
  Status leave() override;
  Status advance(std::uint64_t step) override;
  Status stop(int signal) override;

 private:
  std::shared_ptr<ServerLink> link_;
  transport::MemoryFile memory_;
  SharedLedger ledger_;
};

}  // namespace stormo::server
