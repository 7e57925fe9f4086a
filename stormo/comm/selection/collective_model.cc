#include <stormo/comm/selection/collective_model.h>

#include <stormo/schedule/builders.h>

namespace stormo::comm {

Result<PricedSchedule*> CollectiveModel::priced(const std::vector<int>& ranks_per_host,
                                                const analysis::Collective& c) {
  Choice choice;
  if (c.algorithm.empty()) {
    choice = selection_.choose(c.goal, host_layout_of(ranks_per_host, crowded_),
                               schedule::ranks_of(ranks_per_host),
                               static_cast<std::uint64_t>(c.bytes()));
  } else {
    STORMO_ASSIGN_OR_RETURN(choice.builder, schedule::find_builder(c.algorithm));
    STORMO_RETURN_IF_ERROR(check_choice(choice, c.goal, ranks_per_host));
  }
  std::tuple key(choice, c.root, ranks_per_host);
  if (const auto known = priced_.find(key); known != priced_.end()) return &known->second;
  STORMO_ASSIGN_OR_RETURN(const plan::Schedule s, build(choice, {c.goal, c.root}, ranks_per_host));
  plan::Topology hosts = topology_;
  hosts.host_sizes = ranks_per_host;
  return &priced_.try_emplace(std::move(key), s, std::move(hosts)).first->second;
}

Result<std::vector<analysis::Traffic>> CollectiveModel::traffic(
    const std::vector<int>& ranks_per_host, const analysis::Collective& c) {
  STORMO_ASSIGN_OR_RETURN(PricedSchedule * schedule, priced(ranks_per_host, c));
  return schedule->traffic(c.elements, static_cast<std::int64_t>(size_of(c.dtype)));
}

Result<Duration> CollectiveModel::time(const std::vector<int>& ranks_per_host,
                                       const analysis::Collective& c) {
  STORMO_ASSIGN_OR_RETURN(PricedSchedule * schedule, priced(ranks_per_host, c));
  return schedule->time(c.bytes());
}

std::int64_t CollectiveModel::plays() const {
  std::int64_t sum = 0;
  for (const auto& [key, schedule] : priced_) sum += schedule.plays();
  return sum;
}

}  // namespace stormo::comm
