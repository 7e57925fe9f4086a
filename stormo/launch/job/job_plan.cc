#include <stormo/launch/job/job_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include <stormo/base/requirements.h>
#include <stormo/launch/host_spec.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/spawn.h>
#include <stormo/launch/register_hosts.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/net/tls_setting.h>

namespace stormo::launch {
namespace {

/// The value, or T{} after noting why there is none.
template <class T>
T take(Result<T> result, Requirements& require) {
  require(result.ok(), result.status().message());
  return result.ok() ? std::move(result).value() : T{};
}

/// This program, as other hosts are to call it. A remote shell joins arguments with blanks, so a
/// path with a blank or a quote would arrive as something else.
Result<std::string> agent_program() {
  std::error_code error;
  const std::string path = std::filesystem::read_symlink("/proc/self/exe", error).string();
  if (error) return io_error("cannot find the path of this program: " + error.message());
  const bool plain = std::all_of(path.begin(), path.end(), [](unsigned char c) {
    return std::isalnum(c) ||
           std::string_view("/._-+,@%:=").find(static_cast<char>(c)) != std::string_view::npos;
  });
  if (plain) return path;
  return invalid_argument(fmt::format(
      "'{}': other hosts cannot be asked to run a path with blanks or quotes; move the program",
      path));
}

std::vector<std::string> rank_variables(const LaunchOptions& options,
                                        const std::vector<std::string>& environment) {
  std::vector<std::string> out = without_placement(environment);
  for (const auto& [name, value] : options.environment) {
    std::erase_if(out, [&](const std::string& e) { return e.starts_with(name + "="); });
    out.push_back(name + "=" + value);
  }
  return out;
}

/// The command that starts the agent of a host.
Result<std::vector<std::string>> agent_command(const LaunchOptions& options,
                                               const std::string& host,
                                               const std::vector<std::string>& environment) {
  STORMO_ASSIGN_OR_RETURN(const std::string agent, agent_program());
  STORMO_ASSIGN_OR_RETURN(std::vector<std::string> command,
                          remote_shell_arguments(options.remote_shell, host));
  const std::string folders = absolute_folders(value_of(environment, "PATH"));
  STORMO_RETURN_IF_ERROR(find_program(command.front(), folders).status());
  command.insert(command.end(), {agent, "agent"});
  return command;
}

/// What `options` and its share say of a host.
HostJob host_job(const LaunchOptions& options, const HostShare& share) {
  HostJob job;
  job.program = options.program;
  job.forks = options.forks;
  job.host = share.name == "localhost" ? own_host_name() : share.name;
  job.first_rank = share.first_rank;
  job.local_size = share.ranks;
  job.interface = options.interface;
  job.ports = options.ports;
  job.heartbeat_timeout = options.heartbeat_timeout;
  job.bind = options.bind;
  job.rank0_inherits_output = options.output == OutputMode::kRaw;
  return job;
}

void check_program(const LaunchOptions& options, const std::vector<HostShare>& shares,
                   const std::vector<std::string>& environment, Requirements& require) {
  if (options.program.empty()) return require(false, "no program to run; write it after --");
  // Other hosts check for themselves, before they start a rank.
  const bool here = shares.empty() || std::any_of(shares.begin(), shares.end(), [](const auto& s) {
                      return is_this_host(s.name);
                    });
  if (here) take(find_program(options.program.front(), value_of(environment, "PATH")), require);
}

/// What holds for this process, too: its Store and the ranks must agree on TLS.
void check_variables(const std::vector<std::string>& variables, Requirements& require) {
  take(given_threads(variables), require);
  const std::string_view tls = value_of(variables, transport::kTlsVariable);
  if (tls.empty()) return;
  const Status used = transport::use_tls_setting(tls);
  require(used.ok(), used.message());
}

/// The number of this machine among the hosts.
std::optional<int> own_host(const JobPlan& plan) {
  const auto here = std::ranges::find_if(plan.shells, [](const auto& s) { return s.empty(); });
  if (here == plan.shells.end()) return {};
  return static_cast<int>(here - plan.shells.begin());
}

/// The number of a host's acceptor, or -1.
int acceptor_of(const JobPlan& plan, std::size_t host) {
  const auto found = std::ranges::find(plan.acceptors, static_cast<int>(host));
  return found == plan.acceptors.end() ? -1 : static_cast<int>(found - plan.acceptors.begin());
}

}  // namespace

Result<JobPlan> plan_job(const LaunchOptions& options,
                         const std::vector<std::string>& environment) {
  Requirements require("\n");
  std::vector<HostSlots> hosts;
  std::vector<HostShare> shares;
  if (!options.hosts.empty()) hosts = take(parse_hosts(options.hosts), require);
  if (options.hosts.empty() || !hosts.empty())
    shares = take(place_ranks(options.ranks, hosts), require);
  check_program(options, shares, environment, require);
  check_variables(rank_variables(options, environment), require);

  JobPlan plan;
  plan.elastic = options.elastic;
  std::vector<std::string> names;
  for (const HostShare& share : shares) {
    names.push_back(share.name);
    plan.ranks += share.ranks;
    std::vector<std::string>& shell = plan.shells.emplace_back();
    if (is_this_host(share.name)) continue;
    shell = take(agent_command(options, share.name, environment), require);
    if (!require.wrong().empty()) break;
  }
  plan.listen = "unix:";
  if (shares.size() > 1 || (shares.size() == 1 && !is_this_host(shares.front().name))) {
    plan.address = take(launcher_address(options.interface, names), require);
    plan.listen = "tcp:" + transport::to_string(transport::HostPort{plan.address, 0});
  } else if (!options.interface.empty()) {
    take(choose_interface(options.interface), require);
  }
  STORMO_RETURN_IF_ERROR(require.status());
  plan.may_be_lost = plan.elastic ? RanksToLose{.count = plan.ranks} : options.may_be_lost;

  if (plan.elastic && plan.elastic->register_address.empty()) {
    plan.acceptors = register_hosts(static_cast<int>(plan.shells.size()), own_host(plan));
  }

  std::error_code error;
  const std::string directory = std::filesystem::current_path(error).string();
  for (std::size_t i = 0; i < shares.size(); ++i) {
    const bool here = plan.shells[i].empty();
    HostJob job = host_job(options, shares[i]);
    job.directory = directory.empty() ? "/" : directory;
    job.environment = rank_variables(options, here ? environment : portable(environment));
    job.cross_rank = static_cast<int>(i);
    job.cross_size = static_cast<int>(shares.size());
    job.size = plan.ranks;
    if (plan.elastic) job.longest_stop = plan.elastic->longest_stop;
    job.acceptors = static_cast<int>(plan.acceptors.size());
    job.acceptor = acceptor_of(plan, i);
    plan.slots.push_back(hosts.empty() ? kMaxRanks : hosts[i].slots);
    plan.hosts.push_back(std::move(job));
  }
  return plan;
}

Result<int> add_hosts(std::string_view hosts, const LaunchOptions& options,
                      const std::vector<std::string>& environment, JobPlan& plan) {
  if (hosts.empty()) return 0;
  if (plan.listen == "unix:") {
    return invalid_argument(
        "the job has begun on its launcher's host alone, and listens only there; start it with "
        "another host in -H, too, and it can get further ones");
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<HostSlots> named, parse_hosts(hosts));
  Requirements require("\n");
  int slots = 0;
  for (const HostSlots& host : named) {
    require(!is_this_host(host.name),
            fmt::format("'{}': ranks on the launcher's host have to be in -H", host.name));
    require(std::ranges::find(plan.hosts, host.name, &HostJob::host) == plan.hosts.end(),
            fmt::format("'{}' is a host of the job, or was one, which does not come back; -n N "
                        "gives it more ranks while it is",
                        host.name));
    plan.shells.push_back(take(agent_command(options, host.name, environment), require));
    HostJob job = plan.hosts.front();  // what all hosts have in common
    job.host = host.name;
    job.environment = rank_variables(options, portable(environment));
    job.cross_rank = static_cast<int>(plan.hosts.size());
    job.cross_size = job.cross_rank + 1;
    job.size = job.first_rank = plan.ranks;
    job.local_size = 0;
    job.later_size = host.slots;
    job.acceptor = -1;
    plan.slots.push_back(host.slots);
    plan.hosts.push_back(std::move(job));
    slots += host.slots;
  }
  STORMO_RETURN_IF_ERROR(require.status());
  return slots;
}

DescriptorUse descriptors_of(const JobPlan& plan) {
  DescriptorUse use{
      .ranks = plan.ranks, .serves_store = true, .serves_register = own_acceptor(plan).has_value()};
  for (std::size_t i = 0; i < plan.hosts.size(); ++i) {
    const bool here = plan.shells[i].empty();
    use.local_ranks += here ? plan.hosts[i].local_size : 0;
    use.other_hosts += here ? 0 : 1;
  }
  return use;
}

std::optional<std::size_t> own_acceptor(const JobPlan& plan) {
  for (std::size_t i = 0; i < plan.acceptors.size(); ++i) {
    const int host = plan.acceptors[i];
    if (host == kLauncherHost || plan.shells[static_cast<std::size_t>(host)].empty()) return i;
  }
  return {};
}

}  // namespace stormo::launch
