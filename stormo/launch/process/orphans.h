#pragma once

#include <sys/types.h>

#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/launch/process/event_loop.h>

namespace stormo::launch {

/// While one lives, this process is the parent of every process that its descendants leave behind,
/// also of those in sessions of their own (PR_SET_CHILD_SUBREAPER), so that none can outlive a job.
class Orphans {
 public:
  /// Call on the thread that spawns, which is then not sent SIGCHLD. `loop` must outlive the
  /// result.
  static Result<std::unique_ptr<Orphans>> adopt(EventLoop& loop);
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  /// Ends them and all of their descendants; spares what a remote shell has left for later calls.
  /// Returns those that are still there when `by` has passed: of other users, or stuck in the
  /// kernel.
  std::vector<pid_t> end(Deadline by);

 private:
  explicit Orphans(EventLoop& loop) : loop_(loop) {}
  void reap();
  /// Neither started by this process nor there before adopt().
  bool is_orphan(pid_t child) const;
  std::vector<pid_t> find() const;

  EventLoop& loop_;
  Descriptor signals_;
  sigset_t mask_before_{};
  int subreaper_before_ = 0;
  std::vector<pid_t> children_before_;
};

/// In the environment of remote shells: they may leave a connection open for the next call.
inline constexpr const char* kSparedMark = "STORMO_REMOTE_SHELL=1";

/// Processes that have `assignment` ("NAME=value") in the environment they were started with.
std::vector<pid_t> processes_marked(const std::string& assignment);

}  // namespace stormo::launch
