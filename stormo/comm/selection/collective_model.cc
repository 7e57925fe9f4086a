#include <stormo/comm/selection/collective_model.h>

#include <stormo/analysis/schedule/simulate.h>
#include <stormo/plan/schedule.h>
#include <stormo/schedule/builders.h>

namespace stormo::comm {

Status CollectiveModel::build_for(const std::vector<int>& ranks_per_host,
                                  const analysis::Collective& c) {
  Choice choice;
  if (c.algorithm.empty()) {
    choice = selection_.choose(c.goal, placement_of(ranks_per_host, crowded_),
                               schedule::ranks_of(ranks_per_host),
                               static_cast<std::uint64_t>(c.bytes()));
  } else {
    STORMO_ASSIGN_OR_RETURN(choice.builder, schedule::find_builder(c.algorithm));
    STORMO_RETURN_IF_ERROR(check_choice(choice, c.goal, ranks_per_host));
  }
  if (built_for_ == std::pair(choice, ranks_per_host)) return {};
  built_for_.reset();
  STORMO_ASSIGN_OR_RETURN(built_, build(choice, {.kind = c.goal}, ranks_per_host));
  built_for_.emplace(choice, ranks_per_host);
  return {};
}

Result<std::vector<analysis::Traffic>> CollectiveModel::traffic(
    const std::vector<int>& ranks_per_host, const analysis::Collective& c) {
  const Key key{c.goal, c.elements, c.dtype, c.algorithm, ranks_per_host};
  if (const auto known = traffic_.find(key); known != traffic_.end()) return known->second;
  STORMO_RETURN_IF_ERROR(build_for(ranks_per_host, c));
  plan::Topology hosts = topology_;
  hosts.host_sizes = ranks_per_host;
  const std::vector<int> host_of = hosts.host_of_ranks();
  std::vector<analysis::Traffic> sent(host_of.size());
  const auto element_bytes = static_cast<std::int64_t>(size_of(c.dtype));
  for (const plan::Round& round : built_.rounds) {
    for (const plan::Transfer& t : round) {
      const auto from = static_cast<std::size_t>(t.from), to = static_cast<std::size_t>(t.to);
      const std::int64_t bytes =
          plan::chunk_extent(t.chunk, built_.chunks, c.elements).size() * element_bytes;
      (host_of[from] == host_of[to] ? sent[from].in_host : sent[from].between_hosts) += bytes;
    }
  }
  return traffic_.emplace(key, std::move(sent)).first->second;
}

Result<Duration> CollectiveModel::time(const std::vector<int>& ranks_per_host,
                                       const analysis::Collective& c) {
  const Key key{c.goal, c.elements, c.dtype, c.algorithm, ranks_per_host};
  if (const auto known = times_.find(key); known != times_.end()) return known->second;
  STORMO_RETURN_IF_ERROR(build_for(ranks_per_host, c));
  plan::Topology hosts = topology_;
  hosts.host_sizes = ranks_per_host;
  ManualClock clock;
  const Duration time =
      analysis::simulate(built_, hosts, c.bytes(), clock, analysis::Timeline::kDrop).duration;
  return times_.emplace(key, time).first->second;
}

}  // namespace stormo::comm
