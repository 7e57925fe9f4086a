#pragma once

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// A collective: the options with the fastest synchronous strategy for these ranks, whatever they
/// say of it; equal on all ranks. The ranks measure some steps, all at the same time. Afterwards
/// the module has the values that it had; a model that lacks values (model::ValuesLater) has them.
/// kExhausted if nothing fits into the memory of each rank.
Result<TrainerOptions> choose_strategy(comm::Communicator& world, const Task& task,
                                       const data::Dataset& data, const TrainerOptions& options);

}  // namespace stormo::train
