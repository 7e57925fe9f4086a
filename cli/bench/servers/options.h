#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <cli/launch_flags.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// The flags of `stormo bench servers`, as written.
struct ServersArguments {
  LaunchFlags launch;
  int servers = 1;
  int processes = 0;    // that hold the shards; 0: shared memory
  bool beside = false;  // the workers
  std::vector<std::string> bytes = {"4K", "1M", "16M"};
  std::string seconds = "200ms";
  int rounds = 5;
  bool sparse = false;  // workers are threads, with one shard
  bool json = false;
  std::vector<std::string> wrong;  // what is no number
};

/// What they mean.
struct BenchServersOptions {
  int servers = 1;                   ///< shards
  int processes = 0;                 ///< that hold the shards, in turn; 0: shared memory
  bool beside = false;               ///< the first ranks hold them, and are workers, too
  std::vector<std::uint64_t> bytes;  ///< of a key; every server has one
  double seconds = 0.2;              ///< for each loop of a round
  int rounds = 5;
};

/// Lists everything that is wrong, one line each.
Result<BenchServersOptions> to_servers_options(const ServersArguments& arguments);

}  // namespace stormo::cli
