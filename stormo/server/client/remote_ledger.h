#pragma once

#include <memory>
#include <utility>

#include <stormo/server/ledger.h>
#include <stormo/server/link/data_link.h>

namespace stormo::server {

/// The ledger of a server whose memory is not mapped here, as RemoteShard.
class RemoteLedger final : public Ledger {
 public:
  explicit RemoteLedger(std::shared_ptr<DataLink> link) : link_(std::move(link)) {}

  Status deal(const Terms& terms) override;
  Result<Terms> terms() override;
  Result<Turn> next(const Outcome& outcome) override;
  Result<Turn> look() override;
  Status wait(Deadline by) override;
  Status leave() override;
  Status advance(std::uint64_t step) override;
  Status stop(int signal) override;

 private:
  std::shared_ptr<DataLink> link_;
};

}  // namespace stormo::server
