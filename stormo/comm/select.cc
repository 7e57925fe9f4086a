#include <stormo/comm/select.h>

#include <algorithm>
#include <limits>
#include <numeric>

#include <stormo/schedule/builders.h>

namespace stormo::comm {
namespace {

using plan::GoalKind;

constexpr std::uint64_t kAnySize = std::numeric_limits<std::uint64_t>::max();

/// How ranks lie on hosts, as far as algorithms care.
enum class Placement { kOneHost, kOnePerHost, kEven, kUneven };

Placement placement_of(const std::vector<int>& ranks_per_host) {
  if (ranks_per_host.size() == 1) return Placement::kOneHost;
  const int first = ranks_per_host.front();
  const bool even = std::all_of(ranks_per_host.begin(), ranks_per_host.end(),
                                [first](int n) { return n == first; });
  if (!even) return Placement::kUneven;
  return first == 1 ? Placement::kOnePerHost : Placement::kEven;
}

/// Up to so many bytes, this algorithm.
struct Rule {
  GoalKind goal;
  Placement placement;
  std::uint64_t up_to;
  Choice choice;
};

// The first rule that fits. Sizes between hosts are the crossovers for links of 1 Gbit/s and 20 us.
constexpr Rule kRules[] = {
    {GoalKind::kAllReduce, Placement::kOneHost, kAnySize, {"direct_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kOnePerHost, 8 << 10, {"recursive_doubling_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kOnePerHost, 128 << 10, {"halving_doubling_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kOnePerHost, kAnySize, {"ring_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kEven, 4 << 10, {"leader_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kEven, kAnySize, {"hierarchical_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kUneven, 8 << 10, {"recursive_doubling_all_reduce"}},
    {GoalKind::kAllReduce, Placement::kUneven, kAnySize, {"ring_all_reduce"}},
    {GoalKind::kReduceScatter, Placement::kOneHost, kAnySize, {"direct_reduce_scatter"}},
    {GoalKind::kAllGather, Placement::kOneHost, kAnySize, {"direct_all_gather"}},
    {GoalKind::kBroadcast, Placement::kOneHost, kAnySize, {"direct_broadcast"}},
    {GoalKind::kReduce, Placement::kOneHost, kAnySize, {"direct_reduce"}},
    {GoalKind::kAllToAll, Placement::kOneHost, kAnySize, {"direct_all_to_all"}},
};

/// Where no rule fits.
Choice fallback(GoalKind goal) {
  switch (goal) {
    case GoalKind::kAllReduce: return {"ring_all_reduce"};
    case GoalKind::kReduceScatter: return {"ring_reduce_scatter"};
    case GoalKind::kAllGather: return {"ring_all_gather"};
    case GoalKind::kBroadcast: return {"binomial_broadcast"};
    case GoalKind::kReduce: return {"binomial_reduce"};
    case GoalKind::kGather: return {"direct_gather"};
    case GoalKind::kScatter: return {"direct_scatter"};
    case GoalKind::kScan: return {"brent_kung_scan"};
    case GoalKind::kAllToAll: return {"pairwise_all_to_all"};
  }
  return {};
}

}  // namespace

Choice choose(GoalKind goal, const std::vector<int>& ranks_per_host, std::uint64_t bytes) {
  const Placement placement = placement_of(ranks_per_host);
  for (const Rule& rule : kRules) {
    if (rule.goal == goal && rule.placement == placement && bytes <= rule.up_to) return rule.choice;
  }
  return fallback(goal);
}

Result<plan::Schedule> build(const Choice& choice, const plan::Goal& goal,
                             const std::vector<int>& ranks_per_host) {
  const int ranks = std::accumulate(ranks_per_host.begin(), ranks_per_host.end(), 0);
  STORMO_ASSIGN_OR_RETURN(const schedule::Builder* builder, schedule::find_builder(choice.builder));
  return builder->build(ranks, static_cast<int>(ranks_per_host.size()), goal.root, choice.pieces);
}

}  // namespace stormo::comm
