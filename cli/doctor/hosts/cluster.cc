#include <cli/doctor/hosts/cluster.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <map>

#include <stormo/base/units.h>
#include <stormo/launch/register_hosts.h>

namespace stormo::cli {
namespace {

/// Clocks that a time service sets agree to some milliseconds.
constexpr double kMostClockOffset = 0.1;
/// Of the median of all links.
constexpr double kSlowLink = 0.5;

void check_answers(const Cluster& c, std::vector<ClusterFinding>& out) {
  for (const ClusterHost& h : c.hosts) {
    if (h.problem.empty()) continue;
    out.push_back({{h.name},
                   {true, "does not answer: " + h.problem, "no rank can start there",
                    "make the remote shell reach it without a password, with this program at the "
                    "same path, or leave it out of -H"}});
  }
}

/// What a host has found itself; once for all that have found the same.
void check_each_host(const Cluster& c, std::vector<ClusterFinding>& out) {
  const std::size_t first = out.size();
  for (const ClusterHost& h : c.hosts) {
    if (!h.summary) continue;
    for (const Finding& f : h.summary->found) {
      const auto same = std::find_if(out.begin() + static_cast<std::ptrdiff_t>(first), out.end(),
                                     [&](const ClusterFinding& o) { return o.finding == f; });
      if (same == out.end())
        out.push_back({{h.name}, f});
      else
        same->hosts.push_back(h.name);
    }
    if (h.slots > h.summary->usable_cores)
      out.push_back({{h.name},
                     {false, fmt::format("{} ranks on {} cores", h.slots, h.summary->usable_cores),
                      "ranks that share a core take turns, and all others wait for them",
                      fmt::format("give it at most {} slots", h.summary->usable_cores)}});
  }
}

/// Something that should be equal on all hosts.
void check_equal(const Cluster& c, const char* what, const char* why, const char* remedy,
                 const std::function<std::string(const HostSummary&)>& value,
                 std::vector<ClusterFinding>& out) {
  std::map<std::string, std::vector<std::string>> hosts_by_value;
  for (const ClusterHost& h : c.hosts)
    if (h.summary) hosts_by_value[value(*h.summary)].push_back(h.name);
  if (hosts_by_value.size() < 2) return;
  std::vector<std::string> all, texts;
  for (const auto& [v, hosts] : hosts_by_value) {
    texts.push_back(fmt::format("{} on {}", v.empty() ? "none" : v, fmt::join(hosts, ", ")));
    all.insert(all.end(), hosts.begin(), hosts.end());
  }
  out.push_back(
      {all, {false, fmt::format("{} differs: {}", what, fmt::join(texts, "; ")), why, remedy}});
}

void check_clocks(const Cluster& c, std::vector<ClusterFinding>& out) {
  for (std::size_t i = 0; i < c.hosts.size(); ++i) {
    const auto offset = clock_offset(c, static_cast<int>(i));
    if (!offset || std::abs(offset->seconds) - offset->error <= kMostClockOffset) continue;
    out.push_back(
        {{c.hosts[i].name},
         {false,
          fmt::format("its clock is {:.3g} s {} that of the first host", std::abs(offset->seconds),
                      offset->seconds > 0 ? "ahead of" : "behind"),
          "logs and metrics of different hosts seem to come in another order",
          "let a time service set the clocks of all hosts (chrony, systemd-timesyncd)"}});
  }
}

std::string name(const Cluster& c, int host) {
  return c.hosts[static_cast<std::size_t>(host)].name;
}

double median_rate(const Cluster& c) {
  std::vector<double> rates;
  for (const ClusterLink& l : c.links)
    if (l.measured.problem.empty()) rates.push_back(l.measured.bytes_per_second);
  if (rates.empty()) return 0;
  const auto middle = rates.begin() + static_cast<std::ptrdiff_t>(rates.size() / 2);
  std::nth_element(rates.begin(), middle, rates.end());
  return *middle;
}

void check_links(const Cluster& c, std::vector<ClusterFinding>& out) {
  const double median = median_rate(c);
  for (const ClusterLink& l : c.links) {
    const std::vector<std::string> pair = {name(c, l.from), name(c, l.to)};
    const std::string way = fmt::format("{} to {}", pair[0], pair[1]);
    if (!l.measured.problem.empty())
      out.push_back({pair,
                     {true, fmt::format("{}: {}", way, l.measured.problem),
                      "each rank connects to each other one",
                      "open the ports between the hosts (--ports), name the interface that joins "
                      "them (--interface), and set one MTU on the whole way"}});
    else if (l.measured.bytes_per_second < kSlowLink * median)
      out.push_back(
          {pair,
           {false,
            fmt::format("{}: {}/s, the median of all links is {}/s", way,
                        format_bytes(static_cast<std::uint64_t>(l.measured.bytes_per_second)),
                        format_bytes(static_cast<std::uint64_t>(median))),
            "all ranks wait for the slowest link in each collective",
            "see what else uses it, or leave one of these hosts out"}});
  }
}

void check_mtus(const Cluster& c, std::vector<ClusterFinding>& out) {
  int least = 0, most = 0;
  for (const ClusterLink& l : c.links) {
    if (l.measured.mtu == 0) continue;
    least = least == 0 ? l.measured.mtu : std::min(least, l.measured.mtu);
    most = std::max(most, l.measured.mtu);
  }
  if (least == most) return;
  out.push_back(
      {{},
       {false, fmt::format("packets hold {} bytes on some links, {} on others", least, most),
        "where a switch does not pass the longer ones, connections hang",
        "set one MTU on all hosts"}});
}

}  // namespace

std::optional<ClockOffset> clock_offset(const Cluster& c, int host) {
  const auto first = std::find_if(c.hosts.begin(), c.hosts.end(),
                                  [](const ClusterHost& h) { return h.summary.has_value(); });
  const int reference = static_cast<int>(first - c.hosts.begin());
  if (host == reference && first != c.hosts.end()) return ClockOffset{};
  for (const ClusterLink& l : c.links) {
    const bool forth = l.from == reference && l.to == host;
    const bool back = l.from == host && l.to == reference;
    if ((!forth && !back) || l.measured.round_trip_seconds == 0) continue;
    const double ahead = l.measured.clock_ahead_seconds;
    return ClockOffset{forth ? ahead : -ahead, l.measured.round_trip_seconds / 2};
  }
  return std::nullopt;
}

std::vector<ClusterFinding> findings(const Cluster& c) {
  std::vector<ClusterFinding> out;
  check_answers(c, out);
  check_links(c, out);
  check_each_host(c, out);
  check_equal(
      c, "the release of Stormo", "ranks of one job must be equal", "install the same on all hosts",
      [](const HostSummary& h) { return fmt::format("{} (protocol {})", h.version, h.protocol); },
      out);
  check_equal(
      c, "libtorch", "it may compute other last bits, and checkpoints may not load",
      "install the same version on all hosts", [](const HostSummary& h) { return h.torch; }, out);
  check_equal(
      c, "the kernel", "one host may be slower than the others, and all wait for it",
      "use one image for all hosts", [](const HostSummary& h) { return h.kernel; }, out);
  check_clocks(c, out);
  check_mtus(c, out);
  std::stable_partition(out.begin(), out.end(),
                        [](const ClusterFinding& f) { return f.finding.fatal; });
  return out;
}

// One of three may be lost.
Losses losses_of(const std::vector<std::string>& hosts, std::optional<int> launcher) {
  Losses out;
  for (const int host : launch::register_hosts(static_cast<int>(hosts.size()), launcher)) {
    out.acceptors.push_back(host == launch::kLauncherHost ? std::string(kLauncherHost)
                                                          : hosts[static_cast<std::size_t>(host)]);
  }
  if (out.acceptors.size() == 1) out.end_job = out.acceptors;
  if (hosts.size() == 1 && !launcher) out.end_job.insert(out.end_job.begin(), hosts.front());
  return out;
}

std::string to_text(const Losses& losses, const std::vector<std::string>& hosts) {
  if (losses.end_job.empty()) return "any one host may be lost, also that of the launcher";
  const std::string text =
      fmt::format("the loss of {} ends the job", fmt::join(losses.end_job, " or of "));
  const auto other = std::ranges::find_if(hosts, [&](const std::string& h) {
    return std::ranges::find(losses.end_job, h) == losses.end_job.end();
  });
  return other == hosts.end() ? text : fmt::format("{} may be lost; {}", *other, text);
}

}  // namespace stormo::cli
