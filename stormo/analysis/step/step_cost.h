#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <stormo/analysis/transfer/collectives.h>
#include <stormo/base/status.h>
#include <stormo/plan/step_plan.h>

namespace stormo::analysis {

/// Bytes that one rank sends in a step.
struct Traffic {
  std::int64_t between_hosts = 0;
  std::int64_t in_host = 0;  ///< or what peers read of its memory

  Traffic& operator+=(const Traffic& other) {
    between_hosts += other.between_hosts;
    in_host += other.in_host;
    return *this;
  }
  bool operator==(const Traffic&) const = default;
};

/// What a collective moves, by rank of a group that lies on hosts like this. Which algorithm runs
/// is the callee's business (comm/selection/collective_model.h).
using TrafficOf = std::function<Result<std::vector<Traffic>>(const std::vector<int>& ranks_per_host,
                                                             const Collective&)>;

/// The part of it that moves over some axes together.
struct AxesCost {
  std::vector<std::string> axes;
  std::int64_t collectives = 0;  ///< that one rank takes part in
  std::int64_t payload = 0;      ///< bytes of their buffers, of moves and of halos, of one group
  Traffic sent = {};             ///< by all ranks
  bool operator==(const AxesCost&) const = default;
};

/// Bytes that one rank sends in a step, on average over steps that do not send alike.
struct MeanTraffic {
  double between_hosts = 0;
  double in_host = 0;
  bool operator==(const MeanTraffic&) const = default;
};

struct StepCost {
  std::vector<Traffic> ranks;  ///< by rank of the mesh, in a step in which all actions are done
  /// The same over the steps of all periods (Action::every): of an action for one of every n steps
  /// 1/n.
  std::vector<MeanTraffic> mean;
  std::vector<AxesCost> axes;  ///< in the order of the plan
  /// Bytes that each worker receives from the servers, and sends to them. They are not in `ranks`:
  /// on which hosts the servers are no plan says.
  std::int64_t pulled = 0;
  std::int64_t pushed = 0;
  Traffic total() const;
};

/// Of one step of a verified plan, on hosts with that many ranks. Contracts: what the ranks count
/// on their sockets is `between_hosts`, to the byte; where slices of parameters differ in size, the
/// largest count. O(actions * ranks), besides `traffic_of`, which is asked once for neighbouring
/// groups that lie on hosts alike.
Result<StepCost> cost(const plan::StepPlan& plan, const std::vector<int>& ranks_per_host,
                      const StepSizes& sizes, const TrafficOf& traffic_of);

}  // namespace stormo::analysis
