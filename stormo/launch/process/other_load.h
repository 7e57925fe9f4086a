#pragma once

#include <chrono>
#include <string>

#include <stormo/launch/process/cpus.h>

namespace stormo::launch {

/// How many of the processors on which this process may run were kept busy by others since this
/// object was made: others than this process and its children that have been waited for.
class OtherLoad {
 public:
  OtherLoad();
  double cores() const;

 private:
  double busy_;  // seconds
  double own_;
  std::chrono::steady_clock::time_point begun_;
};

/// Intra-op threads for each rank of a host, by the load of the moment.
struct LoadedThreads {
  int threads = 1;
  std::string note;  ///< a line for the user; empty: others leave all cores
};
/// Blocks for 0.2 s where a rank could have several threads. No rank must be at work yet.
LoadedThreads threads_beside_others(const Cpus& cpus, int local_ranks);

}  // namespace stormo::launch
