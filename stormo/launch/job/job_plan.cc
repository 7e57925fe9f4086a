#include <stormo/launch/job/job_plan.h>

#include <fmt/format.h>

#include <algorithm>
#include <filesystem>
#include <optional>

#include <stormo/base/requirements.h>
#include <stormo/launch/host_spec.h>
#include <stormo/launch/job/register_hosts.h>
#include <stormo/launch/job/remote_host.h>
#include <stormo/launch/network.h>
#include <stormo/launch/process/spawn.h>
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
  std::string agent;
  for (const HostShare& share : shares) {
    names.push_back(share.name);
    plan.ranks += share.ranks;
    std::vector<std::string>& shell = plan.shells.emplace_back();
    if (is_this_host(share.name)) continue;
    if (agent.empty()) agent = take(agent_program(), require);
    shell = take(remote_shell_arguments(options.remote_shell, share.name), require);
    if (!require.wrong().empty()) break;
    take(find_program(shell.front(), absolute_folders(value_of(environment, "PATH"))), require);
    shell.push_back(agent);
    shell.push_back("agent");
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

std::optional<std::size_t> own_acceptor(const JobPlan& plan) {
  for (std::size_t i = 0; i < plan.acceptors.size(); ++i) {
    const int host = plan.acceptors[i];
    if (host == kLauncherHost || plan.shells[static_cast<std::size_t>(host)].empty()) return i;
  }
  return {};
}

}  // namespace stormo::launch
