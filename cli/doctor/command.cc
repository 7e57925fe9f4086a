#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include <cli/commands.h>
#include <cli/doctor/findings.h>
#include <cli/doctor/torch_facts.h>
#include <cli/plan/output.h>
#include <stormo/base/units.h>
#include <stormo/base/version.h>

namespace stormo::cli {
namespace {

using nlohmann::json;

constexpr const char* kDoctorExamples =
    "  stormo doctor           what this host offers, and what would be slow, why and what helps\n"
    "  stormo doctor --json    the same for programs\n"
    "\n"
    "Exit codes: 0 ranks can run here; 1 they cannot.";

std::string limit_text(const std::optional<std::uint64_t>& value) {
  return value ? std::to_string(*value) : "unlimited";
}

std::string torch_line(const HostFacts& f, const std::optional<TorchFacts>& torch) {
  if (!f.torch_problem.empty()) return "cannot be used";
  if (!torch) return "none: this build can run, plan and bench, but not train";
  return fmt::format("{}, {} threads per operation, {}", torch->version, torch->intra_op_threads,
                     torch->blas);
}

json to_json(const HostFacts& f, const std::optional<TorchFacts>& torch) {
  json limits = json::object();
  for (const Limit& l : f.limits)
    limits[l.name] = {{"soft", l.soft ? json(*l.soft) : json()},
                      {"hard", l.hard ? json(*l.hard) : json()}};
  json interfaces = json::array();
  for (const auto& i : f.interfaces)
    interfaces.push_back({{"name", i.name}, {"address", i.address}, {"loopback", i.loopback}});
  return {{"schema", 1},
          {"version", kVersion},
          {"host", f.host},
          {"kernel", f.kernel},
          {"host_addresses", f.host_addresses},
          {"cores", f.cpus.cores.size()},
          {"logical_cpus", f.cpus.logical},
          {"usable_cores", f.cpus.usable_cores()},
          {"numa_nodes", f.cpus.numa_nodes.size()},
          {"cpu_quota", f.cpus.quota > 0 ? json(f.cpus.quota) : json()},
          {"load", f.load},
          {"slowdown",
           {{"computing", f.slowdown.computing},
            {"moving_memory", f.slowdown.moving_memory},
            {"others_busy_cores", f.slowdown.others}}},
          {"memory_bytes", f.memory_bytes},
          {"memory_available_bytes", f.memory_available_bytes},
          {"memory_limit_bytes", f.memory_limit_bytes ? json(*f.memory_limit_bytes) : json()},
          {"pids_limit", f.pids_limit ? json(*f.pids_limit) : json()},
          {"huge_pages", f.hugepages},
          {"shared_memory_huge_pages", f.shared_hugepages},
          {"hugepages_free", f.hugepages_free},
          {"dev_shm_bytes", f.shm_bytes},
          {"limits", limits},
          {"interfaces", interfaces},
          {"congestion_control", f.congestion_control},
          {"memfd", f.has_memfd},
          {"pidfd", f.has_pidfd},
          {"torch", torch ? json::parse(to_json(*torch)) : json()}};
}

void print_line(const char* name, const std::string& text) { fmt::print("{:<14}{}\n", name, text); }

void print_facts(const HostFacts& f, const std::optional<TorchFacts>& torch) {
  print_line("host", fmt::format("{}, {}", f.host, f.kernel));
  print_line(
      "cores",
      fmt::format("{} usable ({} in the affinity mask, {} logical, {} memory {}){}",
                  f.cpus.usable_cores(), f.cpus.cores.size(), f.cpus.logical,
                  f.cpus.numa_nodes.size(), f.cpus.numa_nodes.size() == 1 ? "node" : "nodes",
                  f.cpus.quota > 0 ? fmt::format(", quota {:.2f}", f.cpus.quota) : std::string()));
  print_line("all at once",
             fmt::format("a core computes {:.2f} times as long while the others "
                         "compute, and moves memory {:.2f} times as long; others "
                         "kept {:.1f} cores busy",
                         f.slowdown.computing, f.slowdown.moving_memory, f.slowdown.others));
  print_line("memory", fmt::format("{} available of {}{}", format_bytes(f.memory_available_bytes),
                                   format_bytes(f.memory_bytes),
                                   f.memory_limit_bytes
                                       ? ", cgroup limit " + format_bytes(*f.memory_limit_bytes)
                                       : std::string()));
  print_line("huge pages", fmt::format("{}; shared memory: {}; reserved and free: {}", f.hugepages,
                                       f.shared_hugepages ? "yes" : "no", f.hugepages_free));
  print_line("/dev/shm", f.shm_bytes > 0 ? format_bytes(f.shm_bytes) : "none");
  std::string limits;
  for (const Limit& l : f.limits)
    limits += fmt::format("{}{} {} (at most {})", limits.empty() ? "" : ", ", l.name,
                          limit_text(l.soft), limit_text(l.hard));
  print_line("limits", limits);
  for (const auto& i : f.interfaces)
    print_line("interface", fmt::format("{} {}", i.name, i.address));
  print_line("name", fmt::format("{} is {}", f.host,
                                 f.host_addresses.empty()
                                     ? "not resolved"
                                     : fmt::format("{}", fmt::join(f.host_addresses, ", "))));
  print_line("tcp", "congestion control " + f.congestion_control);
  print_line("kernel calls", fmt::format("memfd {}, pidfd {}", f.has_memfd ? "works" : "fails",
                                         f.has_pidfd ? "works" : "fails"));
  print_line("libtorch", torch_line(f, torch));
}

int report(bool as_json) {
  HostFacts facts = read_host_facts();
  std::optional<TorchFacts> torch;
  if (auto answer = torch_facts(); answer.ok()) {
    torch = std::move(*answer);
  } else {
    facts.torch_problem = answer.status().message();
  }
  const std::vector<Finding> found = findings(facts);
  if (as_json) {
    json object = to_json(facts, torch);
    object["findings"] = json::array();
    for (const Finding& f : found)
      object["findings"].push_back(
          {{"fatal", f.fatal}, {"what", f.what}, {"why", f.why}, {"remedy", f.remedy}});
    print_json(object);
  } else {
    print_facts(facts, torch);
    fmt::print("\n");
    for (const Finding& f : found)
      fmt::print("{}: {}\n  why:    {}\n  remedy: {}\n", f.fatal ? "broken" : "slow", f.what, f.why,
                 f.remedy);
    if (found.empty()) fmt::print("nothing that would be slow\n");
  }
  const bool broken =
      std::any_of(found.begin(), found.end(), [](const Finding& f) { return f.fatal; });
  return broken ? kExitFailed : kExitOk;
}

}  // namespace

void add_doctor_command(CLI::App& app, Invocation& invocation) {
  CLI::App* command = app.add_subcommand("doctor", "Check this host: what would fail or be slow");
  command->footer(kDoctorExamples);
  const auto as_json = std::make_shared<bool>(false);
  command->add_flag("--json", *as_json, "One JSON object on stdout");
  command->callback([as_json, &invocation] { invocation.exit_code = report(*as_json); });
}

}  // namespace stormo::cli
