#include <cli/doctor/hosts/check_hosts.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include <cli/commands.h>
#include <cli/doctor/hosts/cluster.h>
#include <cli/doctor/report.h>
#include <cli/failure.h>
#include <cli/flag_values.h>
#include <cli/own_program.h>
#include <cli/plan/output.h>
#include <stormo/base/printable.h>
#include <stormo/base/units.h>
#include <stormo/launch/job/ask_hosts.h>

namespace stormo::cli {
namespace {

using nlohmann::json;

std::string limit_of(const HostSummary& h, const char* name) {
  for (const Limit& l : h.limits)
    if (l.name == name) return l.soft ? std::to_string(*l.soft) : "unlimited";
  return "-";
}

std::string memory_of(const HostSummary& h) {
  std::string text = format_bytes(h.memory_bytes);
  if (h.memory_limit_bytes) text += ", limit " + format_bytes(*h.memory_limit_bytes);
  return text;
}

std::string rate_text(double bytes_per_second) {
  return format_bytes(static_cast<std::uint64_t>(bytes_per_second)) + "/s";
}

std::string clock_text(const std::optional<ClockOffset>& offset) {
  if (!offset) return "-";
  return fmt::format("{:+.3f} ms +- {:.3f}", 1e3 * offset->seconds, 1e3 * offset->error);
}

void print_hosts(const Cluster& c) {
  Rows rows = {{"host", "slots", "stormo", "libtorch", "kernel", "cores", "memory", "/dev/shm",
                "nofile", "nproc", "memlock", "clock"}};
  for (std::size_t i = 0; i < c.hosts.size(); ++i) {
    const ClusterHost& h = c.hosts[i];
    std::vector<std::string> row = {h.name, std::to_string(h.slots)};
    if (h.summary) {
      const HostSummary& s = *h.summary;
      const std::vector<std::string> more = {fmt::format("{} ({})", s.version, s.protocol),
                                             s.torch.empty() ? "none" : s.torch,
                                             s.kernel,
                                             std::to_string(s.usable_cores),
                                             memory_of(s),
                                             format_bytes(s.shm_bytes),
                                             limit_of(s, "nofile"),
                                             limit_of(s, "nproc"),
                                             limit_of(s, "memlock"),
                                             clock_text(clock_offset(c, static_cast<int>(i)))};
      row.insert(row.end(), more.begin(), more.end());
    } else {
      row.emplace_back("no answer");
    }
    for (std::string& cell : row) cell = printable_line(cell);
    row.resize(rows.front().size());
    rows.push_back(std::move(row));
  }
  print_table(rows, false);
}

void print_links(const Cluster& c) {
  if (c.links.empty()) return;
  Rows rows = {{"link", "round trip", "bandwidth", "MTU", "TLS"}};
  for (const ClusterLink& l : c.links) {
    const LinkMeasurement& m = l.measured;
    const bool works = m.problem.empty();
    rows.push_back({fmt::format("{} to {}", c.hosts[static_cast<std::size_t>(l.from)].name,
                                c.hosts[static_cast<std::size_t>(l.to)].name),
                    works ? time_text(m.round_trip_seconds) : "-",
                    works ? rate_text(m.bytes_per_second) : "broken",
                    m.mtu > 0 ? std::to_string(m.mtu) : "-", m.is_encrypted ? "yes" : "no"});
  }
  fmt::print("\n");
  print_table(rows, false);
}

void print_findings(const std::vector<ClusterFinding>& found) {
  fmt::print("\n");
  for (const auto& [hosts, f] : found)
    fmt::print("{}{}: {}\n  why:    {}\n  remedy: {}\n", f.fatal ? "broken" : "note",
               hosts.empty() ? "" : fmt::format(" ({})", fmt::join(hosts, ", ")),
               message_text(f.what), message_text(f.why), message_text(f.remedy));
  if (found.empty()) fmt::print("nothing that would be slow\n");
}

json to_json(const Cluster& c, const std::vector<json>& reports) {
  json hosts = json::array(), links = json::array();
  for (std::size_t i = 0; i < c.hosts.size(); ++i) {
    const ClusterHost& h = c.hosts[i];
    const auto offset = clock_offset(c, static_cast<int>(i));
    hosts.push_back({{"name", h.name},
                     {"slots", h.slots},
                     {"problem", h.problem},
                     {"report", reports[i]},
                     {"clock_ahead_s", offset ? json(offset->seconds) : json()},
                     {"clock_error_s", offset ? json(offset->error) : json()}});
  }
  for (const ClusterLink& l : c.links)
    links.push_back({{"from", c.hosts[static_cast<std::size_t>(l.from)].name},
                     {"to", c.hosts[static_cast<std::size_t>(l.to)].name},
                     {"problem", l.measured.problem},
                     {"round_trip_s", l.measured.round_trip_seconds},
                     {"bytes_per_s", l.measured.bytes_per_second},
                     {"mtu", l.measured.mtu > 0 ? json(l.measured.mtu) : json()},
                     {"encrypted", l.measured.is_encrypted}});
  return {{"schema", 1}, {"hosts", hosts}, {"links", links}};
}

/// What the hosts have answered.
Cluster cluster_of(const std::vector<launch::HostSlots>& hosts,
                   const std::vector<launch::HostAnswer>& answers) {
  Cluster out;
  for (const launch::HostSlots& h : hosts)
    out.hosts.push_back({.name = h.name, .slots = h.slots, .problem = {}, .summary = {}});
  for (std::size_t i = 0; i < answers.size(); ++i) {
    ClusterHost& h = out.hosts[i];
    h.problem = answers[i].problem;
    if (!h.problem.empty()) continue;
    const Status added = add_answer(out, static_cast<int>(i), answers[i].output);
    if (!added.ok()) h.problem = added.message();
  }
  return out;
}

Losses losses_with_launcher(const std::vector<std::string>& names) {
  const auto own = std::ranges::find_if(names, launch::is_this_host);
  const bool is_apart = own == names.end();
  return losses_of(names,
                   is_apart ? std::nullopt : std::optional(static_cast<int>(own - names.begin())));
}

json whole_json(const Cluster& c, const std::vector<launch::HostAnswer>& answers,
                const std::vector<ClusterFinding>& found, const Losses& losses,
                const std::vector<std::string>& names) {
  std::vector<json> reports;
  for (std::size_t i = 0; i < c.hosts.size(); ++i) {
    reports.push_back(c.hosts[i].summary ? json::parse(answers[i].output) : json());
    if (reports.back().is_object()) {
      reports.back().erase("links");
      reports.back().erase("findings");
    }
  }
  json out = to_json(c, reports);
  out["findings"] = json::array();
  for (const ClusterFinding& f : found) {
    json finding = json::parse(to_json(f.finding));
    finding["hosts"] = f.hosts;
    out["findings"].push_back(finding);
  }
  out["elastic"] = {{"acceptors", losses.acceptors},
                    {"end_job", losses.end_job},
                    {"text", to_text(losses, names)}};
  return out;
}

Result<launch::LaunchOptions> survey_options(const LaunchFlags& flags) {
  Wrong wrong;
  launch::LaunchOptions options = to_launch_options(flags, wrong);
  STORMO_RETURN_IF_ERROR(as_status(wrong));
  STORMO_ASSIGN_OR_RETURN(const std::string program, own_program());
  options.program = {program, kHostReportCommand};
  options.bind = launch::BindPolicy::kNone;
  return options;
}

}  // namespace

int check_hosts(const LaunchFlags& flags, bool as_json) {
  const auto hosts = launch::parse_hosts(flags.hosts);
  if (!hosts.ok()) return fail("doctor", hosts.status());
  const auto options = survey_options(flags);
  if (!options.ok()) return fail("doctor", options.status());
  const auto count = static_cast<int>(hosts->size());
  const auto answers = launch::ask_hosts(*options, 2 * kLongestMeasurement * (count + 1));
  if (!answers.ok()) return fail("doctor", answers.status());

  const Cluster cluster = cluster_of(*hosts, *answers);
  const std::vector<ClusterFinding> found = findings(cluster);
  std::vector<std::string> names;
  for (const launch::HostSlots& h : *hosts) names.push_back(h.name);
  const Losses losses = losses_with_launcher(names);
  if (as_json) {
    print_json(whole_json(cluster, *answers, found, losses, names));
  } else {
    print_hosts(cluster);
    print_links(cluster);
    fmt::print("\nelastic training: {} (the register is on {})\n", to_text(losses, names),
               fmt::join(losses.acceptors, ", "));
    fmt::print("otherwise: any loss ends the job; --auto-resume goes on from its checkpoint\n");
    print_findings(found);
  }
  const bool broken =
      std::ranges::any_of(found, [](const ClusterFinding& f) { return f.finding.fatal; });
  return broken ? kExitFailed : kExitOk;
}

}  // namespace stormo::cli
