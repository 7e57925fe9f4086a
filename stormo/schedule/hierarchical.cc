// Hierarchical all-reduce, reduce-scatter, all-gather, broadcast and reduce, after the
// data-partitioned multi-leader design (DPML).
//
// Idea: ranks of one host share fast links, hosts share slow ones. Reduce-scatter inside each host
// leaves local rank l with the host's sum of slice l; the ranks with equal l of all hosts
// all-reduce that slice over a ring; all-gather inside each host spreads the slices. Every rank is
// the leader of one slice, so the work between hosts is spread over all of them. An all-gather is
// the second half of that, a reduce-scatter the same backwards; a broadcast passes pieces along a
// chain of hosts, whose ranks take turns, and a reduce is that backwards. Where a host has fewer
// ranks than another they lead several slices. The canonical ones are direct between hosts instead
// of rings, so that all slices are added up in one order.
// Cost, for h hosts of m ranks: the all-reduce takes 2(h-1) + 2 rounds, the canonical one 4; per
// rank 2(m-1)/m K bytes inside the host and 2(h-1)/h K/m between hosts, that is 2(h-1)/h K per host
// however many ranks it has. All-gather and reduce-scatter are half of it, broadcast and reduce
// send K from host to host.
// Paper: M. Bayatpour, S. Chakraborty, H. Subramoni, X. Lu, D. K. Panda, "Scalable reduction
// collectives with data partitioning-based multi-leader design", SC17.
#include <stormo/schedule/algorithms.h>

#include <utility>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;

plan::Schedule all_reduce_through(const HostSizes& hosts, const plan::Schedule& among_hosts,
                                  std::string name) {
  const HostLeaders leaders = HostLeaders::of_width(hosts, widest(hosts), count(hosts));
  plan::Schedule s = reversed(leaders.inside_hosts(), ReceiveOp::kReduce);
  s = then(std::move(s), leaders.between_hosts(among_hosts));
  return with_goal(then(std::move(s), leaders.inside_hosts()), std::move(name),
                   {GoalKind::kAllReduce});
}

plan::Schedule all_gather_through(const HostSizes& hosts, const plan::Schedule& among_hosts) {
  const HostLeaders leaders = HostLeaders::by_rank(hosts);
  return then(leaders.between_hosts(among_hosts), leaders.inside_hosts());
}

plan::Schedule reduce_scatter_through(const HostSizes& hosts, const plan::Schedule& among_hosts,
                                      std::string name) {
  return with_goal(reversed(all_gather_through(hosts, among_hosts), ReceiveOp::kReduce),
                   std::move(name), {GoalKind::kReduceScatter});
}

}  // namespace

plan::Schedule hierarchical_all_reduce(const HostSizes& hosts) {
  return all_reduce_through(hosts, ring_all_reduce(count(hosts)), "hierarchical_all_reduce");
}

plan::Schedule canonical_all_reduce(const HostSizes& hosts) {
  return all_reduce_through(hosts, direct_all_reduce(count(hosts)), "canonical_all_reduce");
}

plan::Schedule hierarchical_all_gather(const HostSizes& hosts) {
  return with_goal(all_gather_through(hosts, ring_all_gather(count(hosts))),
                   "hierarchical_all_gather", {GoalKind::kAllGather});
}

plan::Schedule hierarchical_reduce_scatter(const HostSizes& hosts) {
  return reduce_scatter_through(hosts, ring_all_gather(count(hosts)),
                                "hierarchical_reduce_scatter");
}

plan::Schedule canonical_reduce_scatter(const HostSizes& hosts) {
  return reduce_scatter_through(hosts, direct_all_gather(count(hosts)), "canonical_reduce_scatter");
}

plan::Schedule hierarchical_broadcast(const HostSizes& hosts, Rank root, int pieces) {
  const HostLeaders leaders = HostLeaders::of_width(hosts, widest(hosts), pieces).with_root(root);
  const plan::Schedule chain = chain_broadcast(count(hosts), host_of(hosts, root), pieces);
  return with_goal(then(leaders.between_hosts(chain), leaders.inside_hosts()),
                   "hierarchical_broadcast", {GoalKind::kBroadcast, root});
}

plan::Schedule hierarchical_reduce(const HostSizes& hosts, Rank root, int pieces) {
  return with_goal(reversed(hierarchical_broadcast(hosts, root, pieces), ReceiveOp::kReduce),
                   "hierarchical_reduce", {GoalKind::kReduce, root});
}

}  // namespace stormo::schedule
