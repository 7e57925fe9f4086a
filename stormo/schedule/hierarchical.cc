// Hierarchical all-reduce, after the data-partitioned multi-leader design (DPML).
//
// Idea: ranks of one host share fast links, hosts share slow ones. Reduce-scatter inside each host
// leaves local rank l with the host's sum of slice l; the ranks with equal l of all hosts
// all-reduce that slice over a ring; all-gather inside each host spreads the slices. Every rank is
// the leader of one slice, so the work between hosts is spread over all of them. Cost, for h hosts
// of m ranks: 2(h-1) + 2 rounds; per rank 2(m-1)/m K bytes inside the host and 2(h-1)/h K/m between
// hosts, that is 2(h-1)/h K per host however many ranks it has. Paper: M. Bayatpour, S.
// Chakraborty, H. Subramoni, X. Lu, D. K. Panda, "Scalable reduction collectives with data
// partitioning-based multi-leader design", SC17.
#include <stormo/schedule/hierarchical.h>

#include <vector>

#include <stormo/base/check.h>
#include <stormo/plan/limits.h>
#include <stormo/schedule/compose.h>
#include <stormo/schedule/direct.h>
#include <stormo/schedule/ring.h>

namespace stormo::schedule {
namespace {

/// `flat`, a schedule over one rank of each host, run by every local rank at once on its own slice.
plan::Schedule across_hosts(const plan::Schedule& flat, int ranks_per_host) {
  const int hosts = flat.ranks;
  std::vector<plan::Schedule> parts;
  for (int local = 0; local < ranks_per_host; ++local) {
    std::vector<Rank> group;
    for (int host = 0; host < hosts; ++host) group.push_back(host * ranks_per_host + local);
    parts.push_back(on_group(
        flat, group, hosts * ranks_per_host,
        {.offset = local * flat.chunks, .width = 1, .chunks = flat.chunks * ranks_per_host}));
  }
  return side_by_side(parts);
}

}  // namespace

plan::Schedule inside_each_host(const plan::Schedule& flat, int hosts, int width) {
  const int ranks_per_host = flat.ranks;
  STORMO_CHECK(hosts >= 1 && hosts <= plan::kMaxRanks / ranks_per_host,
               "hierarchical: ranks out of range");
  std::vector<plan::Schedule> parts;
  for (int host = 0; host < hosts; ++host) {
    std::vector<Rank> group;
    for (int local = 0; local < ranks_per_host; ++local) {
      group.push_back(host * ranks_per_host + local);
    }
    parts.push_back(on_group(flat, group, hosts * ranks_per_host,
                             {.offset = 0, .width = width, .chunks = width * flat.chunks}));
  }
  return side_by_side(parts);
}

plan::Schedule hierarchical(const plan::Schedule& reduce_scatter, const plan::Schedule& all_reduce,
                            const plan::Schedule& all_gather) {
  const int ranks_per_host = reduce_scatter.ranks, hosts = all_reduce.ranks;
  STORMO_CHECK(reduce_scatter.chunks == ranks_per_host && all_gather.ranks == ranks_per_host &&
                   all_gather.chunks == ranks_per_host,
               "hierarchical: parts of different shape");
  plan::Schedule s = inside_each_host(reduce_scatter, hosts, all_reduce.chunks);
  s = then(std::move(s), across_hosts(all_reduce, ranks_per_host));
  return then(std::move(s), inside_each_host(all_gather, hosts, all_reduce.chunks));
}

plan::Schedule hierarchical_all_reduce(int hosts, int ranks_per_host) {
  return with_goal(hierarchical(direct_reduce_scatter(ranks_per_host), ring_all_reduce(hosts),
                                direct_all_gather(ranks_per_host)),
                   "hierarchical_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
