#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/codec/speed.h>
#include <stormo/comm/communicator.h>
#include <stormo/comm/selection/step_model.h>
#include <stormo/comm/selection/step_price.h>
#include <stormo/data/dataset.h>
#include <stormo/plan/topology.h>
#include <stormo/train/open_keys.h>
#include <stormo/train/options.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// One way to send less, and what it takes.
struct TrafficWay {
  Codec codec;
  int period = 1;
  bool is_automatic = true;  ///< see CodecLoss
  comm::StepInput step = {};
  comm::StepPrice price = {};
};

/// All ways that the job allows with another value of the key that is open; the first one loses
/// least. Each plan once. kInvalidArgument says why all codecs, or all periods, are refused.
/// `samples`, `can_share`: see planned_step().
Result<std::vector<TrafficWay>> traffic_ways(const TrainerOptions& options, const Task& task,
                                             const std::vector<int>& ranks_per_host,
                                             const OpenKeys& open, std::int64_t samples = 0,
                                             bool can_share = true);

/// Says what the steps of all ways take. `speed_of`: what ranks take for a codec.
Status price_ways(std::vector<TrafficWay>& ways, comm::StepModel& model,
                  const TrainerOptions& options,
                  const std::function<Result<CodecSpeed>(Codec)>& speed_of);

/// Of priced ways: comm::least_lossy() of those that are automatic. Its place.
std::size_t taken_way(const std::vector<TrafficWay>& ways);

/// The options with a way.
TrainerOptions with(TrainerOptions options, const TrafficWay& way);

/// What ranks have chosen.
struct TrafficChoice {
  std::vector<TrafficWay> ways;  ///< with prices, if there are several
  std::size_t taken = 0;
  std::optional<plan::Topology> links = {};  ///< as measured, if there are several ways
  const TrafficWay& way() const { return ways[taken]; }
};

/// A collective: ranks measure their links, some steps and codecs, and choose alike. Afterwards the
/// module has the values that it had; a model that lacks values (model::ValuesLater) has them. What
/// there is only one way for is not measured.
Result<TrafficChoice> choose_traffic(comm::Communicator& world, const Task& task,
                                     const data::Dataset& data, const TrainerOptions& options,
                                     const OpenKeys& open);

/// "int8, which loses least of what hides communication: a step is said to take 41 ms, and 40 ms
/// without communication; links of ...".
std::string why(const TrafficChoice& choice, const OpenKeys& open);

}  // namespace stormo::train
