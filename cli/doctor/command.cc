#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <string>

#include <cli/commands.h>
#include <cli/doctor/hosts/check_hosts.h>
#include <cli/doctor/report.h>
#include <cli/failure.h>
#include <cli/launch_flags.h>
#include <cli/plan/output.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

constexpr const char* kDoctorExamples =
    "  stormo doctor              what this host offers, what would be slow, why and what helps\n"
    "  stormo doctor --json       the same for programs\n"
    "  stormo doctor -H a:4,b:4   whether a job could start on these hosts, what differs between\n"
    "                             them, clocks, links, and whose loss would end the job\n"
    "\n"
    "Exit codes: 0 ranks can run here, or there; 1 they cannot; 2 usage or configuration.";

std::string limit_text(const std::optional<std::uint64_t>& value) {
  return value ? std::to_string(*value) : "unlimited";
}

std::string torch_line(const HostFacts& f, const std::optional<TorchFacts>& torch) {
  if (!f.torch_problem.empty()) return "cannot be used";
  if (!torch) return "none: this build can run, plan and bench, but not train";
  return fmt::format("{}, {} threads per operation, {}", torch->version, torch->intra_op_threads,
                     torch->blas);
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
  const HostReport r = report_host();
  if (as_json) {
    fmt::print("{}\n", to_json(r));
  } else {
    print_facts(r.facts, r.torch);
    fmt::print("\n");
    for (const Finding& f : r.found)
      fmt::print("{}: {}\n  why:    {}\n  remedy: {}\n", f.fatal ? "broken" : "slow", f.what, f.why,
                 f.remedy);
    if (r.found.empty()) fmt::print("nothing that would be slow\n");
  }
  return std::ranges::any_of(r.found, &Finding::fatal) ? kExitFailed : kExitOk;
}

struct DoctorArguments {
  LaunchFlags launch;
  bool json = false;
};

void add_flags(CLI::App& command, DoctorArguments& arguments) {
  command.add_option("-H,--hosts", arguments.launch.hosts,
                     "Check these hosts as those of one job: host:slots,host:slots;\nlocalhost is "
                     "this one");
  add_network_flags(command, arguments.launch);
  command.add_flag("--json", arguments.json, "One JSON object on stdout");
}

int run(const DoctorArguments& arguments) {
  return arguments.launch.hosts.empty() ? report(arguments.json)
                                        : check_hosts(arguments.launch, arguments.json);
}

}  // namespace

void add_doctor_command(CLI::App& app, Invocation& invocation) {
  add_command<DoctorArguments>(app, invocation, "doctor",
                               "Check this host, or the hosts of a job: what would fail or be slow",
                               kDoctorExamples, add_flags, run);
  app.add_subcommand(kHostReportCommand, "")->group("")->callback([&invocation] {
    const Status done = report_to_others();
    invocation.exit_code = done.ok() ? kExitOk : fail(kHostReportCommand, done);
  });
}

}  // namespace stormo::cli
