#pragma once

#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/transport/call/fields.h>
#include <stormo/transport/store/store.h>

namespace stormo::launch {

/// Everything that one host needs to start its ranks of a job. A remote host gets it on
/// the agent's standard input.
struct HostJob {
  std::vector<std::string> program;
  bool forks = false;                    ///< see LaunchOptions
  std::string directory;                 ///< working directory of the ranks
  std::vector<std::string> environment;  ///< "NAME=value", without the variables of a single rank
  std::string host;                      ///< display name
  int cross_rank = 0;
  int cross_size = 1;
  int size = 1;
  Rank first_rank = 0;
  int local_size = 1;
  int later_size = 0;  ///< of a host that is added, with local_size 0: it is to have so many
  std::string name;    ///< of an elastic job; empty: it is none
  /// Of an elastic job. Empty: the agent starts the host's acceptor of the register, if it is to
  /// have one, and then waits for the address.
  std::string register_address;
  Duration longest_stop = Duration::zero();  ///< of an elastic job, see Elastic
  int acceptor = -1;                         ///< its number in the register; -1: this host has none
  int acceptors = 0;                         ///< of the register; 0: it is not the job's own
  transport::StoreAddress store;
  transport::Secret secret;
  std::string interface;
  transport::PortRange ports;
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  BindPolicy bind = BindPolicy::kAuto;
  bool rank0_inherits_output = false;  ///< if it is a terminal of the launcher's own host
};

void fields(auto& visit, transport::Like<HostJob> auto& job) {
  std::string secret = job.secret.empty() ? "" : job.secret.to_hex();
  visit("job description", job.program, job.forks, job.directory, job.environment, job.host,
        job.cross_rank, job.cross_size, transport::within(job.size, 1, kMaxRanks), job.first_rank,
        transport::within(job.local_size, 0, kMaxRanks),
        transport::within(job.later_size, 0, kMaxRanks), job.name, job.register_address,
        job.longest_stop, job.acceptor, job.acceptors, job.store.text, secret, job.interface,
        job.ports.first, job.ports.last, job.heartbeat_timeout,
        transport::within(job.bind, BindPolicy::kAuto, BindPolicy::kNone));
  visit.require(!job.program.empty() && job.first_rank >= 0 &&
                    job.local_size + job.later_size > 0 &&
                    job.first_rank <= job.size - job.local_size && job.cross_rank >= 0 &&
                    job.cross_rank < job.cross_size,
                "ranks out of bounds");
  visit.require(job.name.empty() ? job.register_address.empty() && job.acceptors == 0
                                 : !job.register_address.empty() || job.acceptors > 0,
                "half of an elastic job");
  visit.require(job.acceptor >= -1 && (job.acceptor < 0 || job.acceptor < job.acceptors),
                "an acceptor out of bounds");
  if constexpr (!std::is_const_v<std::remove_reference_t<decltype(job)>>) {
    Result<transport::Secret> given = transport::Secret::from_hex(secret);
    visit.require(secret.empty() || given.ok(), "not a secret");
    if (given.ok()) job.secret = *std::move(given);
  }
  transport::cleanse(secret);
}

/// With the version of this program.
std::string encode(const HostJob& job);
/// Checks the version and bounds: the bytes come over a network.
Result<HostJob> decode_host_job(std::string_view bytes);

/// The threads of each rank that the variables name, see threads_per_rank(); 0: none.
Result<int> given_threads(const std::vector<std::string>& environment);

/// The environment of local rank `local_rank`. `secret_fd` < 0: no secret. The number of threads is
/// taken from the environment, else computed from `cpus`. `incarnation`: which start of this rank
/// it is, of an elastic job.
std::vector<std::string> rank_environment(const HostJob& job, int local_rank, const Cpus& cpus,
                                          int secret_fd, int incarnation = 1);

/// Whether the ranks of the host are forked from one loaded program. Not where libraries choose the
/// cores of threads when they are loaded, of those that the process then has.
bool loads_program_once(const HostJob& job);

/// Whether the ranks go on when the launcher, or the agent of their host, is lost; see outlive.h.
bool outlives_launcher(const HostJob& job);

/// `environment` without the variables for which places_a_rank() is true.
std::vector<std::string> without_placement(const std::vector<std::string>& environment);

/// `environment` without variables that belong to one host or login, for sending to other hosts.
std::vector<std::string> portable(const std::vector<std::string>& environment);

/// The value of NAME in a list of "NAME=value"; empty when not there.
std::string_view value_of(const std::vector<std::string>& environment, std::string_view name);

}  // namespace stormo::launch
