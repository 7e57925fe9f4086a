// Leader all-reduce ("hierarchical copy"), broadcast and reduce.
//
// Idea: every host reduces to its leader, the leaders all-reduce by recursive doubling, each leader
// broadcasts to its host. A broadcast is a binomial tree among the leaders and then inside each
// host, a reduce the same backwards.
// Cost, for h hosts of m ranks: the all-reduce takes the rounds of recursive doubling among h, and
// 2; a leader sends (m-1) K bytes inside its host and log2 h times K between hosts. Broadcast and
// reduce take ceil(log2 h) + 1 rounds. Few messages, so for small buffers; with large ones the
// leaders are the bottleneck, and the hierarchical ones share their work among all ranks.
// Paper: E. Chan, R. van de Geijn, W. Gropp, R. Thakur, "Collective communication on architectures
// that support simultaneous communication over multiple links", PPoPP 2006, for the leaders; the
// scheme is that of most MPI libraries on clusters of multi-core hosts.
#include <stormo/schedule/algorithms.h>

#include <utility>

#include <stormo/schedule/compose.h>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;

}  // namespace

plan::Schedule leader_all_reduce(const HostSizes& hosts) {
  const HostLeaders leaders = HostLeaders::of_width(hosts, 1, 1);
  plan::Schedule s = reversed(leaders.inside_hosts(), ReceiveOp::kReduce);
  s = then(std::move(s), leaders.between_hosts(recursive_doubling_all_reduce(count(hosts))));
  return with_goal(then(std::move(s), leaders.inside_hosts()), "leader_all_reduce",
                   {GoalKind::kAllReduce});
}

plan::Schedule leader_broadcast(const HostSizes& hosts, Rank root) {
  const HostLeaders leaders = HostLeaders::of_width(hosts, 1, 1).with_root(root);
  const plan::Schedule tree = binomial_broadcast(count(hosts), host_of(hosts, root));
  return with_goal(then(leaders.between_hosts(tree), leaders.inside_hosts()), "leader_broadcast",
                   {GoalKind::kBroadcast, root});
}

plan::Schedule leader_reduce(const HostSizes& hosts, Rank root) {
  return with_goal(reversed(leader_broadcast(hosts, root), ReceiveOp::kReduce), "leader_reduce",
                   {GoalKind::kReduce, root});
}

}  // namespace stormo::schedule
