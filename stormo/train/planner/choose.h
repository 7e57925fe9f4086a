#pragma once

#include <cstdint>
#include <vector>

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

/// What each rank of the fullest host may use of the memory that is available on a host, beside
/// what it uses already.
std::int64_t memory_of_a_rank(std::uint64_t available, const std::vector<int>& ranks_per_host);

}  // namespace stormo::train
