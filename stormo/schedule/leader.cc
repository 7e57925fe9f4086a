// Leader all-reduce ("hierarchical copy").
//
// Idea: every host reduces to its leader, the leaders all-reduce by recursive doubling, each leader
// broadcasts to its host.
// Cost, for h hosts of m ranks: the rounds of recursive doubling among h, and 2; a leader sends
// (m-1) K bytes inside its host and log2 h times K between hosts. Few messages, so for small
// buffers; with large ones the leaders are the bottleneck, and hierarchical_all_reduce shares their
// work among all ranks.
// Paper: E. Chan, R. van de Geijn, W. Gropp, R. Thakur, "Collective communication on architectures
// that support simultaneous communication over multiple links", PPoPP 2006, for the leaders; the
// scheme is that of most MPI libraries on clusters of multi-core hosts.
#include <stormo/schedule/leader.h>

#include <vector>

#include <stormo/schedule/compose.h>
#include <stormo/schedule/hierarchical.h>
#include <stormo/schedule/recursive_doubling.h>
#include <stormo/schedule/rooted.h>

namespace stormo::schedule {

plan::Schedule leader_all_reduce(int hosts, int ranks_per_host) {
  const int ranks = hosts * ranks_per_host;
  std::vector<Rank> leaders;
  for (int host = 0; host < hosts; ++host) leaders.push_back(host * ranks_per_host);
  plan::Schedule s = inside_each_host(direct_reduce(ranks_per_host, 0), hosts, 1);
  s = then(std::move(s), on_group(recursive_doubling_all_reduce(hosts), leaders, ranks, {}));
  s = then(std::move(s), inside_each_host(direct_broadcast(ranks_per_host, 0), hosts, 1));
  return with_goal(std::move(s), "leader_all_reduce", {plan::GoalKind::kAllReduce});
}

}  // namespace stormo::schedule
