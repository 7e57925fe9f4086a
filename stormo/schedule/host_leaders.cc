#include <stormo/schedule/host_leaders.h>

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

HostLeaders HostLeaders::of_width(HostSizes hosts, int width, int chunks) {
  HostLeaders out;
  out.hosts_ = std::move(hosts);
  out.first_.push_back(0);
  for (const int size : out.hosts_) out.first_.push_back(out.first_.back() + size);
  for (int g = 0; g < chunks; ++g) {
    auto& slices = out.slices_.emplace_back();
    for (int k = 0; k < width; ++k) slices.push_back(k * chunks + g);
  }
  return out;
}

HostLeaders HostLeaders::by_rank(HostSizes hosts) {
  HostLeaders out = of_width(std::move(hosts), 0, 0);
  for (std::size_t h = 0; h < out.hosts_.size(); ++h) {
    auto& slices = out.slices_.emplace_back(static_cast<std::size_t>(out.hosts_[h]));
    std::iota(slices.begin(), slices.end(), out.first_[h]);
  }
  return out;
}

HostLeaders HostLeaders::with_root(Rank root) && {
  root_ = root;
  return std::move(*this);
}

Rank HostLeaders::leader(int host, int slice) const {
  const auto h = static_cast<std::size_t>(host);
  if (root_ && *root_ >= first_[h] && *root_ < first_[h + 1]) return *root_;
  return first_[h] + slice % hosts_[h];
}

int HostLeaders::chunks() const {
  std::size_t chunks = 0;
  for (const auto& slices : slices_) chunks += slices.size();
  return static_cast<int>(chunks);
}

plan::Schedule HostLeaders::between_hosts(const plan::Schedule& s) const {
  STORMO_CHECK(
      s.ranks == static_cast<int>(hosts_.size()) && s.chunks == static_cast<int>(slices_.size()),
      "between_hosts: a schedule of another shape");
  plan::Schedule out = without_rounds(s.name, s.goal, first_.back(), chunks());
  for (const plan::Round& round : s.rounds) {
    plan::Round& wide = out.rounds.emplace_back();
    for (const plan::Transfer& t : round) {
      const auto& slices = slices_[static_cast<std::size_t>(t.chunk)];
      for (int k = 0; k < static_cast<int>(slices.size()); ++k) {
        wide.push_back(
            {leader(t.from, k), leader(t.to, k), slices[static_cast<std::size_t>(k)], t.how});
      }
    }
  }
  return out;
}

plan::Schedule HostLeaders::inside_hosts() const {
  plan::Schedule out = without_rounds("", {plan::GoalKind::kBroadcast}, first_.back(), chunks());
  plan::Round round;
  for (int host = 0; host < static_cast<int>(hosts_.size()); ++host) {
    for (const auto& slices : slices_) {
      for (int k = 0; k < static_cast<int>(slices.size()); ++k) {
        const Rank from = leader(host, k);
        for (Rank to = first_[static_cast<std::size_t>(host)];
             to < first_[static_cast<std::size_t>(host) + 1]; ++to) {
          if (to == from) continue;
          round.push_back({from, to, slices[static_cast<std::size_t>(k)], plan::ReceiveOp::kCopy});
        }
      }
    }
  }
  if (!round.empty()) out.rounds.push_back(std::move(round));
  return out;
}

}  // namespace stormo::schedule
