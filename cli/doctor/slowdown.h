#pragma once

#include <stormo/launch/process/cpus.h>

namespace stormo::cli {

/// How many times as long one core takes while all others do the same, median of interleaved turns.
struct Slowdown {
  double computing = 1;      ///< within its cache
  double moving_memory = 1;  ///< beyond all caches
  double others = 0;         ///< cores that other processes kept busy meanwhile
};

/// Measures with one thread on each core, for a quarter of a second. Ones for a single core.
Slowdown measure_slowdown(const launch::Cpus& cpus);

}  // namespace stormo::cli
