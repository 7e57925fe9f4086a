#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/comm/selection/selection.h>
#include <stormo/plan/topology.h>

namespace stormo::comm {

/// What the collectives of a job's groups would move and take: by the schedule that would run.
/// Starts nothing. Keeps what it has computed, for each size and form of group.
class CollectiveModel {
 public:
  /// Of `topology` the links count, not the hosts. `crowded`: hosts have fewer cores than ranks.
  CollectiveModel(plan::Topology topology, Selection selection, bool crowded = false)
      : topology_(std::move(topology)), selection_(std::move(selection)), crowded_(crowded) {}

  /// By rank of the group, for analysis::cost. O(transfers) for a new size.
  Result<std::vector<analysis::Traffic>> traffic(const std::vector<int>& ranks_per_host,
                                                 const analysis::Collective& c);
  /// Until the last rank is done, if all start together, in analysis::simulate's model of links.
  /// O(transfers) for a new size.
  Result<Duration> time(const std::vector<int>& ranks_per_host, const analysis::Collective& c);

 private:
  /// Goal, elements, type, algorithm, group.
  using Key = std::tuple<plan::GoalKind, std::int64_t, DType, std::string, std::vector<int>>;

  Status build_for(const std::vector<int>& ranks_per_host, const analysis::Collective& c);

  plan::Topology topology_;
  Selection selection_;
  bool crowded_;
  std::map<Key, std::vector<analysis::Traffic>> traffic_;
  std::map<Key, Duration> times_;
  /// The last one built: neighbours in a plan often differ in nothing but size.
  std::optional<std::pair<Choice, std::vector<int>>> built_for_;
  plan::Schedule built_;
};

}  // namespace stormo::comm
