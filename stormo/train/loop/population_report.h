#pragma once

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/observe/records.h>
#include <stormo/train/loop/run_context.h>
#include <stormo/train/population/population_store.h>

namespace stormo::train {

/// Judges by the validation part: of a tournament by this member's share of its samples, else by
/// all of them. `setup` is borrowed.
Judge judge_of(const RunSetup& setup);

/// What the members have done. A collective.
Result<observe::PopulationRecord> population_record(comm::Communicator& world,
                                                    const PopulationStore& population);

}  // namespace stormo::train
