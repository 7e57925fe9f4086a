#include <stormo/schedule/host_lanes.h>

#include <algorithm>
#include <numeric>
#include <utility>

#include <stormo/base/check.h>
#include <stormo/schedule/compose.h>

namespace stormo::schedule {

int ranks_of(const HostSizes& hosts) { return std::accumulate(hosts.begin(), hosts.end(), 0); }

int widest(const HostSizes& hosts) { return std::ranges::max(hosts); }

HostSizes spread_over(int ranks, int hosts) {
  STORMO_CHECK(hosts >= 1 && hosts <= ranks, "spread_over: hosts out of range");
  HostSizes sizes(static_cast<std::size_t>(hosts), ranks / hosts);
  std::for_each_n(sizes.begin(), ranks % hosts, [](int& size) { ++size; });
  return sizes;
}

int host_of(const HostSizes& hosts, Rank rank) {
  int host = 0;
  for (Rank end = hosts[0]; end <= rank; end += hosts[static_cast<std::size_t>(host)]) ++host;
  return host;
}

HostLanes HostLanes::of_width(HostSizes hosts, int width, int chunks) {
  HostLanes out;
  out.hosts_ = std::move(hosts);
  out.first_.push_back(0);
  for (const int size : out.hosts_) out.first_.push_back(out.first_.back() + size);
  for (int g = 0; g < chunks; ++g) {
    auto& lanes = out.lanes_.emplace_back();
    for (int l = 0; l < width; ++l) lanes.push_back(l * chunks + g);
  }
  return out;
}

HostLanes HostLanes::by_rank(HostSizes hosts) {
  HostLanes out = of_width(std::move(hosts), 0, 0);
  for (std::size_t h = 0; h < out.hosts_.size(); ++h) {
    auto& lanes = out.lanes_.emplace_back(static_cast<std::size_t>(out.hosts_[h]));
    std::iota(lanes.begin(), lanes.end(), out.first_[h]);
  }
  return out;
}

HostLanes HostLanes::carried_by(Rank root) && {
  root_ = root;
  return std::move(*this);
}

Rank HostLanes::carrier(int host, int lane) const {
  const auto h = static_cast<std::size_t>(host);
  if (root_ && *root_ >= first_[h] && *root_ < first_[h + 1]) return *root_;
  return first_[h] + lane % hosts_[h];
}

int HostLanes::chunks() const {
  std::size_t chunks = 0;
  for (const auto& lanes : lanes_) chunks += lanes.size();
  return static_cast<int>(chunks);
}

plan::Schedule HostLanes::between_hosts(const plan::Schedule& s) const {
  STORMO_CHECK(
      s.ranks == static_cast<int>(hosts_.size()) && s.chunks == static_cast<int>(lanes_.size()),
      "between_hosts: a schedule of another shape");
  plan::Schedule out = without_rounds(s.name, s.goal, first_.back(), chunks());
  for (const plan::Round& round : s.rounds) {
    plan::Round& wide = out.rounds.emplace_back();
    for (const plan::Transfer& t : round) {
      const auto& lanes = lanes_[static_cast<std::size_t>(t.chunk)];
      for (int l = 0; l < static_cast<int>(lanes.size()); ++l) {
        wide.push_back(
            {carrier(t.from, l), carrier(t.to, l), lanes[static_cast<std::size_t>(l)], t.how});
      }
    }
  }
  return out;
}

plan::Schedule HostLanes::inside_hosts() const {
  plan::Schedule out = without_rounds("", {plan::GoalKind::kBroadcast}, first_.back(), chunks());
  plan::Round round;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    for (const auto& lanes : lanes_) {
      for (int l = 0; l < static_cast<int>(lanes.size()); ++l) {
        const Rank from = carrier(host, l);
        for (Rank to = first_[static_cast<std::size_t>(host)];
             to < first_[static_cast<std::size_t>(host) + 1]; ++to) {
          if (to == from) continue;
          round.push_back({from, to, lanes[static_cast<std::size_t>(l)], plan::ReceiveOp::kCopy});
        }
      }
    }
  }
  if (!round.empty()) out.rounds.push_back(std::move(round));
  return out;
}

}  // namespace stormo::schedule
