#include <stormo/train/world/thread_share.h>

#include <sched.h>

#include <algorithm>

#include <stormo/launch/process/cpus.h>

namespace stormo::train {

bool CpuShare::overlaps(const CpuShare& other) const {
  if (host != other.host) return false;
  for (std::size_t i = 0; i < bits.size(); ++i) {
    if ((bits[i] & other.bits[i]) != 0) return true;
  }
  return false;
}

CpuShare current_cpu_share(int host) {
  CpuShare mask{.host = host, .usable_cores = launch::read_cpus().usable_cores(), .bits = {}};
  cpu_set_t set;
  CPU_ZERO(&set);
  if (sched_getaffinity(0, sizeof set, &set) != 0) {
    mask.set(0);
    return mask;
  }
  for (int cpu = 0; cpu < CpuShare::kMaxCpus; ++cpu) {
    if (CPU_ISSET(cpu, &set)) mask.set(cpu);
  }
  return mask;
}

ThreadShare share_threads(std::span<const CpuShare> ranks, int requested) {
  ThreadShare share{.threads = CpuShare::kMaxCpus};
  for (const CpuShare& mine : ranks) {
    const auto sharers = static_cast<int>(
        std::ranges::count_if(ranks, [&](const CpuShare& m) { return m.overlaps(mine); }));
    const int fair = static_cast<int>(mine.usable_cores) / std::max(sharers, 1);
    share.threads = std::min(share.threads, std::max(fair, 1));
    share.oversubscribed |= fair < std::max(requested, 1);
  }
  if (requested > 0) share.threads = requested;
  return share;
}

}  // namespace stormo::train
