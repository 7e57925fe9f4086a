#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/launch/environment.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/launch/process/fork_server.h>
#include <stormo/launch/process/output.h>
#include <stormo/transport/store/store.h>

namespace stormo::launch {

/// Called at the end of a job with its exit code, the report of a failure, and whether rank 0
/// exited by itself, so that it could report the error.
using EndListener =
    std::function<void(int exit_code, const std::string& report, bool rank_0_exited)>;

/// Neighbouring ranks that may be lost: the job goes on without them.
struct RanksToLose {
  Rank first = 0;
  int count = 0;
  /// How many of them, the last ones, are servers that have copies of each other. Then not all of
  /// these may be lost, nor all of the others. When rank 0 may be lost, another rank writes the
  /// standard output of the job after it.
  int servers = 0;
};

/// A job whose ranks stand in for each other: it goes on while one of them lives, and ends when one
/// has ended well (docs/adr/0036-elastic-training.md). Each finds who is in it by its membership
/// register, whose address is in STORMO_REGISTER.
struct Elastic {
  /// As membership::open_register() takes it; the caller has asked it whether it does. Empty: the
  /// launcher has a register for this job, which ends with it.
  std::string register_address;
  /// A lost rank is started again where it was, with its number of starts in STORMO_INCARNATION, by
  /// the rules of protocol::Supervisor.
  bool replaces = true;
  /// A rank that has been stopped for longer is ended, so that another one can take its place.
  Duration longest_stop = std::chrono::seconds(8);
  // Of a job that replaces its ranks: people may ask for more ranks or fewer while it runs.
  int min_ranks = 1;          ///< at least so many
  int max_ranks = kMaxRanks;  ///< at most
  bool adds_places = true;  ///< false: each rank has a part of its own, and no new one can have it
  /// Path of the socket by which they do (job_control.h); empty: none.
  std::string control;
};

/// The program to start, the hosts, and how output is shown.
struct LaunchOptions {
  std::vector<std::string> program;  ///< looked up in PATH, then its arguments
  bool forks = false;  ///< its main() calls serve_forks(): each host loads it once (fork_server.h)
  /// Has loaded it on this host, and is ended when the ranks are started, of an elastic job with
  /// the job; null: it is not loaded.
  std::shared_ptr<ForkServer> loaded;
  std::optional<int> ranks;  ///< empty: every slot of `hosts`
  std::string hosts;         ///< "a:2,b:2"; empty: all ranks on this host
  std::string remote_shell = "ssh {host}";
  BindPolicy bind = BindPolicy::kAuto;
  std::string interface;
  transport::PortRange ports;
  OutputMode output = OutputMode::kPrefix;
  std::vector<std::pair<std::string, std::string>> environment;  ///< added for every rank
  Duration heartbeat_timeout = std::chrono::milliseconds(2500);
  RanksToLose may_be_lost;
  std::optional<Elastic> elastic;  ///< then all ranks may be lost
  EndListener on_end;              ///< called when the job has ended
  bool rank_0_reports = false;     ///< see protocol::Supervisor::Options
};

/// Runs the job; blocks until its end and returns the exit code for the calling program: 0, 1, 2,
/// 75, 130 or 143 (protocol/supervisor.h). The report of a failure is written to standard error.
/// kInvalidArgument lists all errors of `options`; then nothing was started.
///
/// Call it on the main thread, before the program starts threads of its own: it blocks signals,
/// forks, and its children die with the calling thread.
Result<int> launch(const LaunchOptions& options);

}  // namespace stormo::launch
