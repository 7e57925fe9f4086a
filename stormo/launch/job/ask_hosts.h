#pragma once

#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/launch/job/launcher.h>

namespace stormo::launch {

/// What one host has answered.
struct HostAnswer {
  std::string host;
  std::string output;   ///< of its process, the first MiB
  std::string problem;  ///< why there is no whole answer; empty: its process has ended with 0
};

/// Set in the Store by the process of a host, when it is ready to meet the others.
std::string arrival_key(Rank rank);
/// The ranks of all hosts that have arrived ("0,2"), set when every host has arrived or is lost.
inline constexpr std::string_view kPresentKey = "hosts/present";

/// Starts `options.program` on each host of `options.hosts`, as launch() starts ranks: one process
/// on each (all slots count as one), with a Store and a secret. Collects what each writes to its
/// standard output. A host that fails is an answer with a problem, and the others go on. Blocks at
/// most for `at_most` from when all hosts have arrived or are lost.
///
/// kInvalidArgument lists what is wrong with `options`; then nothing was started. kInterrupted
/// after a signal. Call it where launch() may be called.
Result<std::vector<HostAnswer>> ask_hosts(LaunchOptions options, Duration at_most);

}  // namespace stormo::launch
