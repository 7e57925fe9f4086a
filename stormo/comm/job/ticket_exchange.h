#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>
#include <stormo/comm/job/bulletin.h>
#include <stormo/comm/job/rendezvous_file.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::comm {

/// How the other ranks of a job get its ticket from rank 0, which serves the Store.
class TicketExchange {
 public:
  virtual ~TicketExchange() = default;
  /// For rank 0, before its Store is there: where that shall listen (StoreServer::Options); empty:
  /// on a TCP port.
  virtual Result<std::string> listen() { return std::string(); }
  /// By rank 0.
  virtual Status publish(const RendezvousTicket& ticket) = 0;
  /// By the others. Blocks at most until `by`.
  virtual Result<RendezvousTicket> receive(Deadline by) = 0;
  /// By rank 0, when all have joined.
  virtual void end() {}
  /// " (which FILE names)" for messages about the Store's address.
  virtual std::string source() const { return {}; }
};

/// Through r.rendezvous_file or r.host_rendezvous_name; null: the rank has its ticket.
std::unique_ptr<TicketExchange> exchange_of(const transport::Rendezvous& r);
/// Through connections of ranks of one host: rank 0's with all others, theirs with rank 0.
std::unique_ptr<TicketExchange> exchange_over(std::vector<Descriptor> connections);
/// Through a Bulletin, which outlives it.
std::unique_ptr<TicketExchange> exchange_in(Bulletin& bulletin);

}  // namespace stormo::comm
