#pragma once

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/selection/priced_schedule.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/plan/topology.h>

namespace stormo::comm {

/// What the collectives of a job's groups would move and take: by the schedule that would run.
/// Starts nothing. Keeps what it has built and computed, for each algorithm and form of group.
class CollectiveModel {
 public:
  /// Of `topology` the links count, not the hosts. `crowded`: hosts have fewer cores than ranks.
  CollectiveModel(plan::Topology topology, Selection selection, bool crowded = false)
      : topology_(std::move(topology)), selection_(std::move(selection)), crowded_(crowded) {}

  /// By rank of the group, for analysis::cost.
  Result<std::vector<analysis::Traffic>> traffic(const std::vector<int>& ranks_per_host,
                                                 const analysis::Collective& c);
  /// Until the last rank is done, if all start together, in analysis::simulate's model of links.
  Result<Duration> time(const std::vector<int>& ranks_per_host, const analysis::Collective& c);
  /// How often a whole schedule was played for these times.
  std::int64_t plays() const;

 private:
  Result<PricedSchedule*> priced(const std::vector<int>& ranks_per_host,
                                 const analysis::Collective& c);

  plan::Topology topology_;
  Selection selection_;
  bool crowded_;
  std::map<std::pair<Choice, std::vector<int>>, PricedSchedule> priced_;
};

}  // namespace stormo::comm
