#pragma once

#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/launch/process/output.h>
#include <stormo/transport/store/store.h>

namespace stormo::launch {

/// Hears how a job ended: its exit code, the report of a failure, and whether rank 0 came to an
/// exit of its own, so that it could say what was wrong.
using EndListener =
    std::function<void(int exit_code, const std::string& report, bool rank_0_exited)>;

/// What to start, where, and how it is shown.
struct LaunchOptions {
  std::vector<std::string> program;  ///< looked up in PATH, then its arguments
  std::optional<int> ranks;          ///< empty: every slot of `hosts`
  std::string hosts;                 ///< "a:2,b:2"; empty: all ranks on this host
  std::string remote_shell = "ssh {host}";
  BindPolicy bind = BindPolicy::kAuto;
  std::string interface;
  transport::PortRange ports;
  OutputMode output = OutputMode::kPrefix;
  std::vector<std::pair<std::string, std::string>> environment;  ///< added for every rank
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  EndListener on_end;         ///< called once the job has ended
  std::string agent_program;  ///< what runs `agent` on other hosts; empty: this program's own path
};

/// Key of the Store that holds the first cause of a failure.
inline constexpr std::string_view kFailureKey = "failure";

/// Runs the job to its end and returns the exit code for the calling program: 0, 1, 2, 75, 130 or
/// 143 (protocol/supervisor.h). The report of a failure goes to standard error. kInvalidArgument
/// lists all that is wrong with `options` before anything was started.
///
/// Call it on the main thread, before the program starts threads of its own: it blocks signals,
/// forks, and its children die with the calling thread.
Result<int> launch(const LaunchOptions& options);

}  // namespace stormo::launch
