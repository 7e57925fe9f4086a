#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace stormo::train {

/// The CPUs of one rank: its host, the logical CPUs of its affinity mask, and how many cores of
/// these it can use (fewer than in the mask with a cgroup quota or hyperthreads). Ranks send it to
/// each other as raw bytes.
struct CpuShare {
  static constexpr int kMaxCpus = 1024;
  std::int64_t host = 0;
  std::int64_t usable_cores = 1;
  std::array<std::uint64_t, kMaxCpus / 64> bits{};

  void set(int cpu) { bits[static_cast<std::size_t>(cpu) / 64] |= std::uint64_t{1} << (cpu % 64); }
  bool overlaps(const CpuShare& other) const;
};

/// The CpuShare of the calling process.
CpuShare current_cpu_share(int host);

struct ThreadShare {
  int threads = 1;              ///< intra-op threads for every rank
  bool oversubscribed = false;  ///< some rank has less than one core per thread
};

/// Divides cores among the ranks that share them, and returns the minimum over all ranks. With
/// unequal numbers of threads libtorch would add gradients in different orders, and replicas would
/// diverge. `requested` > 0 overrides the number.
ThreadShare share_threads(std::span<const CpuShare> ranks, int requested);

}  // namespace stormo::train
