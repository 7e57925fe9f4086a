#pragma once

#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/launch/job/job_plan.h>
#include <stormo/launch/messages/job_control.h>
#include <stormo/membership/epoch_record.h>
#include <stormo/protocol/supervisor.h>

namespace stormo::launch {

/// What a supervisor is to know of the ranks that a job begins with.
std::vector<protocol::RankPlace> places_of(const JobPlan& plan);

/// Where a rank of a job runs.
struct Seat {
  int host = 0;        ///< of JobPlan::hosts
  int local_rank = 0;  ///< there
  bool operator==(const Seat&) const = default;
};

/// Those of the ranks that the job begins with.
std::vector<Seat> seats_of(const JobPlan& plan);

/// What to tell the supervisor of a running elastic job that is to have `ranks` ranks: with a new
/// place for each that is needed, on hosts with a free slot, in their order. kInvalidArgument with
/// all that is wrong.
Result<protocol::SizeAsked> size_asked(int ranks, const JobPlan& plan,
                                       const protocol::Supervisor& supervisor);

/// Notes in `size` who trains, and whether these are the ranks with the given identities.
void compare(const membership::EpochRecord& record, const std::vector<std::string>& identities,
             JobSize& size);

}  // namespace stormo::launch
