#include <cli/bench/site.h>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <utility>
#include <vector>

#include <cli/bench/child.h>
#include <cli/bench/contenders.h>
#include <cli/own_program.h>
#include <stormo/launch/host_spec.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/launch/process/spawn.h>

namespace stormo::cli {
namespace {

/// After hosts have been made: how many there are, and ranks on them.
Status count_ranks(BenchSite& site) {
  std::vector<launch::HostSlots> hosts;
  if (!site.launch.hosts.empty()) {
    STORMO_ASSIGN_OR_RETURN(hosts, launch::parse_hosts(site.launch.hosts));
  }
  const auto ranks = site.launch.hosts.empty() ? site.launch.ranks.value_or(1) : site.launch.ranks;
  STORMO_ASSIGN_OR_RETURN(const auto shares, launch::place_ranks(ranks, hosts));
  site.ranks = shares.back().first_rank + shares.back().ranks;
  site.hosts = static_cast<int>(shares.size());
  return {};
}

}  // namespace

Result<std::unique_ptr<BenchPlace>> BenchPlace::create(const BenchFlags& flags, int namespaces) {
  STORMO_ASSIGN_OR_RETURN(TemporaryFolder scratch, TemporaryFolder::create("stormo-bench"));
  std::unique_ptr<BenchPlace> place(new BenchPlace(std::move(scratch)));
  BenchSite& site = place->site;
  site.scratch = place->scratch_.path();
  STORMO_ASSIGN_OR_RETURN(site.program, launching_program());
  site.tools = flags.tools.empty() ? std::filesystem::path(site.program).parent_path().string()
                                   : flags.tools;
  const char* path = std::getenv("PATH");
  site.path = launch::absolute_folders(path == nullptr ? "" : path);
  site.cores = launch::read_cpus().usable_cores();
  site.root = ::geteuid() == 0;
  site.launch = flags.launch;
  if (namespaces > 0) STORMO_RETURN_IF_ERROR(place->make_hosts(namespaces, flags));
  site.namespaces = enters_namespaces(site.launch.remote_shell);
  STORMO_RETURN_IF_ERROR(count_ranks(site));
  return place;
}

Status BenchPlace::make_hosts(int count, const BenchFlags& flags) {
  const std::string name = fmt::format("b{}", ::getpid() % 1'000'000);
  ChildCommand up{{hosts_tool(), "up", std::to_string(count), "--name", name}, {}};
  if (!flags.rate.empty()) append(up.words, {"--rate", flags.rate});
  STORMO_ASSIGN_OR_RETURN(const ChildOutcome outcome, run_child(up));
  if (outcome.status != 0)
    return invalid_argument(fmt::format("--hosts {}: {}", count, tail_of(outcome.err)));
  made_ = name;
  std::vector<std::string> hosts;
  for (int i = 1; i <= count; ++i)
    hosts.push_back(fmt::format("{}-{}:{}", name, i, flags.ranks_per_host));
  site.launch.hosts = fmt::format("{}", fmt::join(hosts, ","));
  site.launch.interface = name + "br,eth0";
  site.launch.remote_shell = hosts_tool() + " exec {host}";
  return {};
}

BenchPlace::~BenchPlace() {
  if (made_.empty()) return;
  const auto gone = run_child({{hosts_tool(), "down", "--name", made_}, {}});
  if (!gone.ok() || gone->status != 0)
    fmt::print(stderr, "stormo bench: the hosts stay; take them away by: {} down --name {}\n",
               hosts_tool(), made_);
}

}  // namespace stormo::cli
