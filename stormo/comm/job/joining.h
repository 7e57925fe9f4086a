#pragma once

#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/job/ticket_exchange.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::comm {

/// join() with a way to get the job's ticket; null: it is in `r`. Blocks at most until `by`.
Result<std::unique_ptr<Communicator>> join_through(std::unique_ptr<TicketExchange> tickets,
                                                   const transport::Rendezvous& r, Deadline by,
                                                   std::string version);

}  // namespace stormo::comm
