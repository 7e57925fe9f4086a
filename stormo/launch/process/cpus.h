#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::launch {

/// How ranks are bound to cores of their host.
enum class BindPolicy {
  kAuto,  ///< kCore if each rank has a core of its own, else kNone
  kCore,  ///< an equal share of the cores each
  kNuma,  ///< the cores of one memory node, nodes taken in turn
  kNone,  ///< the system's scheduler decides
};
std::string_view to_string(BindPolicy policy);
Result<BindPolicy> parse_bind_policy(std::string_view text);

/// Logical processors, e.g. {0, 1, 2}.
using CpuList = std::vector<int>;

/// The CPUs on which this process may run.
struct Cpus {
  std::vector<CpuList> cores;       ///< physical cores within the affinity mask
  std::vector<CpuList> numa_nodes;  ///< likewise; at least one
  double quota = 0;                 ///< CPU quota of the cgroup, in processors; 0: no limit
  int logical = 1;                  ///< logical processors in the mask
  bool operator==(const Cpus&) const = default;

  /// Number of cores that can be busy at the same time, by mask and quota.
  int usable_cores() const;
};

/// Reads the affinity mask, the cgroup (v1 and v2) and /sys of this process.
Cpus read_cpus();

/// The processors of each of `local_ranks`; an empty list is not bound.
std::vector<CpuList> bind_ranks(const Cpus& cpus, int local_ranks, BindPolicy policy);

/// "0-3,8" is 0 1 2 3 8; invalid parts are left out.
CpuList parse_cpu_list(std::string_view text);

/// Intra-op threads of one rank: an equal share of the cores, at least one. Where other processes
/// keep `others` cores busy, and these are half of them or more, it is a share of what they leave:
/// threads that share a core with others wait for each other.
int threads_per_rank(const Cpus& cpus, int local_ranks, double others = 0);

}  // namespace stormo::launch
