#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/comm/communicator.h>

namespace stormo::cli {

struct BenchOptions {
  std::vector<std::uint64_t> bytes;
  double seconds_per_size = 0.3;  ///< at least min_iterations all the same
  int min_iterations = 10;
  bool private_buffers = false;  ///< ordinary memory instead of the Arena
};

/// One size. Times are of an iteration, the slowest rank's.
struct BenchResult {
  std::uint64_t bytes = 0;
  int iterations = 0;
  double p50_s = 0;
  double p90_s = 0;
  double algbw = 0;  ///< bytes / p50, per second
  double busbw = 0;  ///< algbw * 2 (n-1) / n
  bool verified = false;
};

/// Times float32 all-reduces. Every iteration rewrites the whole input on its owner before the
/// clock starts (otherwise a rank finds its slice in its cache), and the sums are verified before
/// and after. Collective: every rank calls it with the same options.
Result<BenchResult> bench_all_reduce(comm::Communicator& world, std::uint64_t bytes,
                                     const BenchOptions& options);

}  // namespace stormo::cli
