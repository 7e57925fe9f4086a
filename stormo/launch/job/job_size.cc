#include <stormo/launch/job/job_size.h>

#include <fmt/format.h>

#include <algorithm>

#include <stormo/base/requirements.h>

namespace stormo::launch {
namespace {

/// Who stand in for each other, see RankPlace.
constexpr int kWorkers = 1, kServers = 2;

Status add_places(int count, const JobPlan& plan, const protocol::Supervisor& supervisor,
                  protocol::SizeAsked& asked) {
  int slots = 0;
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    const HostJob& host = plan.hosts[i];
    if (supervisor.is_closed(host.cross_rank)) continue;
    slots += plan.slots[i];
    for (int n = supervisor.num_on_host(host.cross_rank); n < plan.slots[i] && count > 0; ++n) {
      asked.places.push_back({.cross_rank = host.cross_rank,
                              .host = host.host,
                              .may_be_lost = true,
                              .stands_in = kWorkers});
      --count;
    }
  }
  if (count == 0) return {};
  return invalid_argument(
      fmt::format("-n {}: the hosts on which this job runs have {} slot{}; it can get others when "
                  "it is started again, with more slots in -H",
                  asked.ranks, slots, slots == 1 ? "" : "s"));
}

}  // namespace

std::vector<protocol::RankPlace> places_of(const JobPlan& plan) {
  std::vector<protocol::RankPlace> out;
  for (const HostJob& h : plan.hosts)
    out.insert(out.end(), static_cast<std::size_t>(h.local_size), {h.cross_rank, h.host});
  const RanksToLose& lost = plan.may_be_lost;
  for (int i = 0; i < lost.count; ++i) {
    protocol::RankPlace& place = out.at(static_cast<std::size_t>(lost.first + i));
    place.may_be_lost = true;
    if (lost.servers > 0 || plan.elastic)
      place.stands_in = i < lost.count - lost.servers ? kWorkers : kServers;
  }
  return out;
}

std::vector<Seat> seats_of(const JobPlan& plan) {
  std::vector<Seat> seats;
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    for (int r = 0; r < plan.hosts[i].local_size; ++r) seats.push_back({static_cast<int>(i), r});
  }
  return seats;
}

Result<protocol::SizeAsked> size_asked(int ranks, const JobPlan& plan,
                                       const protocol::Supervisor& supervisor) {
  const Elastic& limits = *plan.elastic;
  if (!supervisor.may_change()) {
    return invalid_argument("the job is about to end: it keeps the ranks that it has");
  }
  protocol::SizeAsked asked{.ranks = ranks};
  const int places = supervisor.num_ranks() + supervisor.num_free();
  const int most = limits.adds_places ? limits.max_ranks : places;
  Requirements require("\n");
  require(ranks >= 1,
          fmt::format("-n {}: at least 1; SIGTERM for its launcher ends the job", ranks));
  require(ranks < 1 || ranks >= limits.min_ranks,
          fmt::format("-n {}: the job has elastic.min_ranks={}, and would wait", ranks,
                      limits.min_ranks));
  require(
      ranks <= most,
      fmt::format("-n {}: at most {}: each rank {}", ranks, most,
                  most < kMaxRanks ? "needs a sample, a logical shard, or its place in a pipeline"
                                   : "is a process with its own memory"));
  STORMO_RETURN_IF_ERROR(require.status());
  const int more = ranks - places;
  if (more > 0) STORMO_RETURN_IF_ERROR(add_places(more, plan, supervisor, asked));
  return asked;
}

void compare(const membership::EpochRecord& record, const std::vector<std::string>& identities,
             JobSize& size) {
  size.epoch = record.epoch;
  size.members = static_cast<std::int32_t>(record.members.size());
  const auto is_member = [&record](const std::string& who) {
    return std::ranges::find(record.members, who, &membership::Member::identity) !=
           record.members.end();
  };
  size.is_reached =
      std::ssize(identities) == size.members && std::ranges::all_of(identities, is_member);
}

}  // namespace stormo::launch
