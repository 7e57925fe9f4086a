#include <stormo/train/sampling.h>

#include <string>
#include <utility>

namespace stormo::train {

data::Sampler make_sampler(const data::Dataset& data, const TrainerOptions& options, int rank,
                           int ranks) {
  data::Sampler sampler(data.size(), options.global_batch, options.seed, /*shuffle=*/true, rank,
                        ranks);
  sampler.balance(data.lengths());
  if (options.sharding != data::Sharding::kShuffled) {
    sampler.shard(options.sharding, data.strata());
  }
  return sampler;
}

Status check_sharding(const TrainerOptions& options, int ranks) {
  if (options.logical_shards > 0 && options.sharding != data::Sharding::kShuffled) {
    return invalid_argument("sharding '" + data::name_of(options.sharding) +
                            "' gives ranks other samples if there are more of them, and logical "
                            "shards have the same: leave out data.sharding, or "
                            "train.logical_shards");
  }
  const std::int64_t batch = options.global_batch;
  if (batch < ranks || data::fits(options.sharding, {ranks, batch})) return {};
  return invalid_argument(
      "strict_stratified needs batches of equally many samples for each rank: " +
      std::to_string(batch) + " is no multiple of " + std::to_string(ranks) +
      "; write batch=" + std::to_string(batch - batch % ranks) + ", or data.sharding=stratified");
}

Status check_sharding(const data::Dataset& data, const TrainerOptions& options, int ranks) {
  STORMO_RETURN_IF_ERROR(check_sharding(options, ranks));
  if (options.logical_shards > 0 && !data.lengths().empty()) {
    return invalid_argument(
        "the samples have different lengths, and ranks fill up those that they compute together: "
        "logical shards (train.logical_shards) are for samples of one length; leave it out");
  }
  if (!data::is_stratified(options.sharding)) return {};
  const std::int64_t known = data.strata().size();
  if (known == data.size()) return {};
  return invalid_argument(
      "sharding '" + data::name_of(options.sharding) +
      "' needs the class or the labels of each sample, and the training data give " +
      std::to_string(known) + " for " + std::to_string(data.size()) +
      " samples; implement Dataset::strata(), or choose shuffled or contiguous");
}

std::optional<observe::ShardingRecord> sharding_record(const TrainerOptions& options,
                                                       data::Sampler& sampler,
                                                       std::int64_t cursor) {
  if (options.sharding == data::Sharding::kShuffled) return std::nullopt;
  data::ShardCounts shards = sampler.count_shards(cursor);
  if (shards.counts.empty()) return std::nullopt;
  return observe::ShardingRecord{.sharding = data::name_of(options.sharding),
                                 .samples = std::move(shards.samples),
                                 .counts = std::move(shards.counts),
                                 .chi_square = std::move(shards.chi_square),
                                 .degrees_of_freedom = shards.degrees_of_freedom};
}

}  // namespace stormo::train
