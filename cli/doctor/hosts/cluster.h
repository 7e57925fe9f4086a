#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <cli/doctor/findings.h>
#include <cli/doctor/hosts/link.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// What one host says of itself, as far as it is compared with others.
struct HostSummary {
  std::string version;
  int protocol = 0;
  std::string torch;  ///< version; empty: none
  std::string kernel;
  int usable_cores = 0;
  std::uint64_t memory_bytes = 0;
  std::optional<std::uint64_t> memory_limit_bytes;
  std::uint64_t shm_bytes = 0;
  std::vector<Limit> limits;
  std::vector<Finding> found;
};

/// A host of a job that may come, in the order of -H.
struct ClusterHost {
  std::string name;
  int slots = 1;
  std::string problem;                 ///< why it has not answered; empty: it has
  std::optional<HostSummary> summary;  ///< of one that has answered
};

/// What `from` has measured to `to`, both positions in the list of hosts.
struct ClusterLink {
  int from = 0;
  int to = 0;
  LinkMeasurement measured;
};

struct Cluster {
  std::vector<ClusterHost> hosts;
  std::vector<ClusterLink> links;
};

/// Adds what the process of host `from` has printed to the cluster. kCorrupt if that is something
/// else.
Status add_answer(Cluster& cluster, int from, std::string_view text);

/// How far a host's wall clock is ahead of that of the first host that has answered.
struct ClockOffset {
  double seconds = 0;
  double error = 0;
};
/// By the measurement of either of both; empty where there is none.
std::optional<ClockOffset> clock_offset(const Cluster& cluster, int host);

/// Something about one host or several of them.
struct ClusterFinding {
  std::vector<std::string> hosts;
  Finding finding;
};
/// Pure: what is wrong with the hosts, and between them. The worst first.
std::vector<ClusterFinding> findings(const Cluster& cluster);

/// Where the acceptors of the register of an elastic job run, unless elastic.register names
/// another one, and whose loss alone ends the job.
struct Losses {
  std::vector<std::string> acceptors;
  std::vector<std::string> end_job;
  bool operator==(const Losses&) const = default;
};
inline constexpr std::string_view kLauncherHost = "the launcher's host";
/// `launcher`: position of its host; empty: it is another one.
Losses losses_of(const std::vector<std::string>& hosts, std::optional<int> launcher);
/// "any one host may be lost, also that of the launcher".
std::string to_text(const Losses& losses, const std::vector<std::string>& hosts);

}  // namespace stormo::cli
