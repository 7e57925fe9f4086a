#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/codec/speed.h>
#include <stormo/comm/communicator.h>
#include <stormo/data/dataset.h>
#include <stormo/train/estimate/measure_together.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// A collective: steps of all ranks, which compute at the same time. Means over the ranks of times,
/// and the most of bytes. A model that lacks values (model::ValuesLater) has them afterwards.
/// `memory`: of a rank.
Result<std::vector<StepMeasurement>> measure_on_ranks(comm::Communicator& world, const Task& task,
                                                      const data::Dataset& data,
                                                      const std::vector<Wanted>& wanted,
                                                      std::int64_t memory);

/// A collective: measure_speed() on all ranks at the same time; the mean.
Result<CodecSpeed> speed_on_ranks(comm::Communicator& world, Codec codec);

/// While it lives, the module may change; then it has the values that it had, and no gradients.
class KeptValues {
 public:
  explicit KeptValues(torch::nn::Module& module);
  ~KeptValues();
  KeptValues(const KeptValues&) = delete;
  KeptValues& operator=(const KeptValues&) = delete;

 private:
  torch::nn::Module& module_;
  std::vector<std::pair<torch::Tensor, torch::Tensor>> kept_;
};

/// Gives a model that lacks values all of them.
void make_values(const Task& task);

/// What a rank may use of the memory of its host, and what it uses already; where ranks differ, the
/// least and the most. And whether ranks of a host may share parameters. A collective.
struct RankMemory {
  std::int64_t usable = 0;
  std::int64_t process = 0;
  bool can_share = true;
};
Result<RankMemory> memory_of_ranks(comm::Communicator& world);

/// What each rank of the fullest host may use of the memory that is available on a host, beside
/// what it uses already.
std::int64_t memory_of_a_rank(std::uint64_t available, const std::vector<int>& ranks_per_host);

}  // namespace stormo::train
