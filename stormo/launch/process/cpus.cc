#include <stormo/launch/process/cpus.h>

#include <fmt/format.h>
#include <sched.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <set>
#include <sstream>

#include <stormo/base/file.h>
#include <stormo/base/text.h>
#include <stormo/base/units.h>
#include <stormo/launch/process/control_groups.h>

namespace stormo::launch {
namespace {

CpuList affinity_mask() {
  // Large enough for any kernel's NR_CPUS.
  constexpr int kMost = 16384;
  cpu_set_t* set = CPU_ALLOC(kMost);
  const std::size_t size = CPU_ALLOC_SIZE(kMost);
  CpuList out;
  CPU_ZERO_S(size, set);
  if (::sched_getaffinity(0, size, set) == 0)
    for (int i = 0; i < kMost; ++i)
      if (CPU_ISSET_S(static_cast<std::size_t>(i), size, set)) out.push_back(i);
  CPU_FREE(set);
  if (out.empty()) out.push_back(0);
  return out;
}

CpuList intersection(const CpuList& a, const CpuList& sorted) {
  CpuList out;
  for (const int cpu : a)
    if (std::binary_search(sorted.begin(), sorted.end(), cpu)) out.push_back(cpu);
  return out;
}

std::vector<CpuList> physical_cores(const CpuList& mask) {
  std::vector<CpuList> cores;
  std::set<int> seen;
  for (const int cpu : mask) {
    if (seen.contains(cpu)) continue;
    CpuList siblings =
        intersection(parse_cpu_list(first_line(fmt::format(
                         "/sys/devices/system/cpu/cpu{}/topology/thread_siblings_list", cpu))),
                     mask);
    if (std::find(siblings.begin(), siblings.end(), cpu) == siblings.end()) siblings = {cpu};
    seen.insert(siblings.begin(), siblings.end());
    cores.push_back(std::move(siblings));
  }
  return cores;
}

std::vector<CpuList> memory_nodes(const CpuList& mask) {
  std::vector<CpuList> nodes;
  for (const int node : parse_cpu_list(first_line("/sys/devices/system/node/online"))) {
    CpuList cpus = intersection(
        parse_cpu_list(first_line(fmt::format("/sys/devices/system/node/node{}/cpulist", node))),
        mask);
    if (!cpus.empty()) nodes.push_back(std::move(cpus));
  }
  if (nodes.empty()) nodes.push_back(mask);
  return nodes;
}

/// Quota of one folder of the cpu controller; 0: none. "max 100000", or v1's pair of files.
double quota_of(const std::filesystem::path& folder) {
  double quota = 0;
  double period = 0;
  if (std::istringstream v2(first_line(folder / "cpu.max")); v2 >> quota >> period && period > 0)
    return quota / period;
  std::istringstream v1(first_line(folder / "cpu.cfs_quota_us"));
  std::istringstream length(first_line(folder / "cpu.cfs_period_us"));
  if (v1 >> quota && length >> period && quota > 0 && period > 0) return quota / period;
  return 0;
}

/// The tightest quota from this process's cgroup up to the root.
double cgroup_quota() {
  double tightest = 0;
  for (const std::filesystem::path& folder : control_groups("cpu")) {
    const double quota = quota_of(folder);
    if (quota > 0 && (tightest == 0 || quota < tightest)) tightest = quota;
  }
  return tightest;
}

}  // namespace

std::string_view to_string(BindPolicy policy) {
  switch (policy) {
    case BindPolicy::kAuto: return "auto";
    case BindPolicy::kCore: return "core";
    case BindPolicy::kNuma: return "numa";
    case BindPolicy::kNone: return "none";
  }
  return "unknown";
}

Result<BindPolicy> parse_bind_policy(std::string_view text) {
  for (const BindPolicy p :
       {BindPolicy::kAuto, BindPolicy::kCore, BindPolicy::kNuma, BindPolicy::kNone})
    if (text == to_string(p)) return p;
  return invalid_argument(
      fmt::format("'{}' is no way to bind; write core, numa, none or auto", text));
}

int Cpus::usable_cores() const {
  const int in_mask = std::max<int>(1, static_cast<int>(cores.size()));
  if (quota <= 0) return in_mask;
  return std::clamp(static_cast<int>(std::ceil(quota)), 1, in_mask);
}

Cpus read_cpus() {
  const CpuList mask = affinity_mask();
  return {physical_cores(mask), memory_nodes(mask), cgroup_quota(), static_cast<int>(mask.size())};
}

std::vector<CpuList> bind_ranks(const Cpus& cpus, int local_ranks, BindPolicy policy) {
  std::vector<CpuList> out(static_cast<std::size_t>(std::max(0, local_ranks)));
  const int cores = static_cast<int>(cpus.cores.size());
  if (policy == BindPolicy::kAuto)
    policy = local_ranks > 1 && local_ranks <= cpus.usable_cores() ? BindPolicy::kCore
                                                                   : BindPolicy::kNone;
  if (policy == BindPolicy::kNone || cores == 0) return out;
  for (int r = 0; r < local_ranks; ++r) {
    CpuList& mine = out[static_cast<std::size_t>(r)];
    if (policy == BindPolicy::kNuma) {
      mine = cpus.numa_nodes[static_cast<std::size_t>(r) % cpus.numa_nodes.size()];
      continue;
    }
    // Shares differ by at most one core; with more ranks than cores they take turns.
    const int first = local_ranks <= cores ? r * cores / local_ranks : r % cores;
    const int last = local_ranks <= cores ? (r + 1) * cores / local_ranks : first + 1;
    for (int c = first; c < last; ++c) {
      const CpuList& core = cpus.cores[static_cast<std::size_t>(c)];
      mine.insert(mine.end(), core.begin(), core.end());
    }
  }
  return out;
}

CpuList parse_cpu_list(std::string_view text) {
  CpuList out;
  constexpr int kMost = 1 << 16;
  for (const std::string_view item : split(text, ',')) {
    const std::size_t dash = std::min(item.find('-'), item.size());
    const auto first = number_in<int>(item.substr(0, dash));
    const auto last = dash == item.size() ? first : number_in<int>(item.substr(dash + 1));
    if (!first || !last) continue;
    for (int cpu = *first; cpu <= std::min(*last, kMost); ++cpu) out.push_back(cpu);
  }
  std::sort(out.begin(), out.end());
  return out;
}

int threads_per_rank(const Cpus& cpus, int local_ranks, double others) {
  const auto all = static_cast<int>(cpus.cores.size());
  const int busy = 2 * others >= all ? static_cast<int>(std::lround(others)) : 0;
  return std::max(1, std::min(cpus.usable_cores(), all - busy) / std::max(1, local_ranks));
}

}  // namespace stormo::launch
