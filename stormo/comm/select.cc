#include <stormo/comm/select.h>

#include <algorithm>
#include <numeric>

#include <stormo/base/check.h>
#include <stormo/schedule/binomial.h>
#include <stormo/schedule/direct.h>
#include <stormo/schedule/hierarchical.h>
#include <stormo/schedule/ring.h>

namespace stormo::comm {

plan::Schedule select(const plan::Goal& goal, const std::vector<int>& ranks_per_host) {
  const int ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  const bool one_host = ranks_per_host.size() == 1;
  switch (goal.kind) {
    case plan::GoalKind::kAllReduce: {
      if (one_host) return schedule::direct_all_reduce(ranks);
      const int first = ranks_per_host.front();
      const bool even = std::all_of(ranks_per_host.begin(), ranks_per_host.end(),
                                    [first](int n) { return n == first; });
      if (even && first > 1) {
        return schedule::hierarchical_all_reduce(static_cast<int>(ranks_per_host.size()), first);
      }
      return schedule::ring_all_reduce(ranks);
    }
    case plan::GoalKind::kReduceScatter:
      return one_host ? schedule::direct_reduce_scatter(ranks)
                      : schedule::ring_reduce_scatter(ranks);
    case plan::GoalKind::kAllGather:
      return one_host ? schedule::direct_all_gather(ranks) : schedule::ring_all_gather(ranks);
    case plan::GoalKind::kBroadcast: return schedule::binomial_broadcast(ranks, goal.root);
    case plan::GoalKind::kReduce:
    case plan::GoalKind::kGather:
    case plan::GoalKind::kScatter:
    case plan::GoalKind::kScan:
    case plan::GoalKind::kAllToAll: break;
  }
  STORMO_CHECK(false, "select: no algorithm for this goal yet");
  return {};
}

}  // namespace stormo::comm
