#pragma once

#include <cstdint>
#include <map>
#include <tuple>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/selection/priced_schedule.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/plan/topology.h>

namespace stormo::comm {

/// Predicts bytes and times of the collectives of a job's groups, from the schedules that would be
/// chosen. Runs no collective. Caches what it has built and computed, for each algorithm and form
/// of group.
class CollectiveModel {
 public:
  /// Uses the links of `topology`, not its hosts. `crowded`: hosts have fewer cores than ranks.
  CollectiveModel(plan::Topology topology, Selection selection, bool crowded = false)
      : topology_(std::move(topology)), selection_(std::move(selection)), crowded_(crowded) {}

  /// Bytes by rank of the group, as analysis::cost computes them.
  Result<std::vector<analysis::Traffic>> traffic(const std::vector<int>& ranks_per_host,
                                                 const analysis::Collective& c);
  /// Time until the last rank is done, if all start together, by analysis::simulate.
  Result<Duration> time(const std::vector<int>& ranks_per_host, const analysis::Collective& c);
  /// How often a whole schedule was played for these times.
  std::int64_t plays() const;

 private:
  Result<PricedSchedule*> priced(const std::vector<int>& ranks_per_host,
                                 const analysis::Collective& c);

  plan::Topology topology_;
  Selection selection_;
  bool crowded_;
  std::map<std::tuple<Choice, Rank, std::vector<int>>, PricedSchedule> priced_;
};

}  // namespace stormo::comm
