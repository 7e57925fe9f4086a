#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/transport/store/store.h>

namespace stormo::launch {

/// Everything that one host needs to start its ranks of a job. A remote host gets it as one line of
/// JSON on the agent's standard input.
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
  transport::StoreAddress store;
  transport::Secret secret;
  std::string interface;
  transport::PortRange ports;
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  BindPolicy bind = BindPolicy::kAuto;
  bool rank0_inherits_output = false;  ///< if it is a terminal of the launcher's own host
};

std::string to_json(const HostJob& job);
/// Checks types and bounds: the text comes over a network.
Result<HostJob> host_job_from_json(std::string_view text);

/// The threads of each rank that the variables name, see threads_per_rank(); 0: none.
Result<int> given_threads(const std::vector<std::string>& environment);

/// The environment of local rank `local_rank`. `secret_fd` < 0: no secret. The number of threads is
/// taken from the environment, else computed from `cpus`.
std::vector<std::string> rank_environment(const HostJob& job, int local_rank, const Cpus& cpus,
                                          int secret_fd);

/// Whether the ranks of the host are forked from one loaded program. Not where libraries choose the
/// cores of threads when they are loaded, of those that the process then has.
bool loads_program_once(const HostJob& job);

/// `environment` without the variables for which places_a_rank() is true.
std::vector<std::string> without_placement(const std::vector<std::string>& environment);

/// `environment` without variables that belong to one host or login, for sending to other hosts.
std::vector<std::string> portable(const std::vector<std::string>& environment);

/// The value of NAME in a list of "NAME=value"; empty when not there.
std::string_view value_of(const std::vector<std::string>& environment, std::string_view name);

}  // namespace stormo::launch
