#pragma once

#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/job/ticket_exchange.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/transport/health.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::comm {

/// join() with a way to get the job's ticket; null: it is in `r`. Blocks at most until `by`.
Result<std::unique_ptr<Communicator>> join_through(std::unique_ptr<TicketExchange> tickets,
                                                   const transport::Rendezvous& r, Deadline by,
                                                   std::string version);

/// A group of an EpochWorld.
struct EpochGroup {
  std::unique_ptr<Communicator> group;             ///< null: there is none
  std::shared_ptr<JobWatch> job_watch;             ///< null: this process is alone
  std::shared_ptr<transport::Health> health = {};  ///< whoever makes it fail ends the group
};
/// join() where rank 0's process has a Store at r.store that outlives the group. Rank 0 counts as
/// lost when it has not answered for `silence`. Whoever makes `health` fail ends the joining, and
/// later the group.
Result<EpochGroup> join_epoch(const transport::Rendezvous& r, Duration silence,
                              std::shared_ptr<transport::Health> health);

}  // namespace stormo::comm
