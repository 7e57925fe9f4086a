#pragma once

#include <cstdint>
#include <optional>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/data/sampler.h>
#include <stormo/observe/records.h>
#include <stormo/train/options.h>

namespace stormo::train {

/// The samples of a rank, as the options say. `data` is borrowed for the sampler's life.
data::Sampler make_sampler(const data::Dataset& data, const TrainerOptions& options, int rank,
                           int ranks);

/// kInvalidArgument if the global batch does not suit options.sharding.
Status check_sharding(const TrainerOptions& options, int ranks);
/// The same, and if the data do not.
Status check_sharding(const data::Dataset& data, const TrainerOptions& options, int ranks);

/// Classes of the samples of each rank in the epoch at `cursor`. Empty for Sharding::kShuffled, and
/// for data without classes.
std::optional<observe::ShardingRecord> sharding_record(const TrainerOptions& options,
                                                       data::Sampler& sampler, std::int64_t cursor);

}  // namespace stormo::train
