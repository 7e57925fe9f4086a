#pragma once

#include <array>
#include <cstdint>
#include <span>

namespace stormo::train {

/// Where one rank may run: its host, the logical CPUs of its affinity mask there, and how many
/// cores of these it can keep busy (less than the mask has under a cgroup's quota or with
/// hyperthreads). Sent between ranks as it is.
struct CpuShare {
  static constexpr int kMaxCpus = 1024;
  std::int64_t host = 0;
  std::int64_t usable_cores = 1;
  std::array<std::uint64_t, kMaxCpus / 64> bits{};

  void set(int cpu) { bits[static_cast<std::size_t>(cpu) / 64] |= std::uint64_t{1} << (cpu % 64); }
  bool overlaps(const CpuShare& other) const;
};

/// That of the calling process.
CpuShare current_cpu_share(int host);

struct ThreadShare {
  int threads = 1;              ///< intra-op threads for every rank
  bool oversubscribed = false;  ///< some rank has less than one core per thread
};

/// Cores divided among the ranks that share them, and the least of all ranks: with unequal numbers,
/// libtorch would add the same gradients up in different orders, and replicas would drift apart.
/// `requested` > 0 overrides the number.
ThreadShare share_threads(std::span<const CpuShare> ranks, int requested);

}  // namespace stormo::train
