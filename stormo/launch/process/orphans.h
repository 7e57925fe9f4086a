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

/// While this object lives, this process becomes the parent of every process that its descendants
/// leave behind, also of those in other sessions (PR_SET_CHILD_SUBREAPER), so that no process can
/// outlive a job.
class Orphans {
 public:
  /// Call on the thread that spawns processes; SIGCHLD is then blocked in this thread. `loop` must
  /// outlive the result.
  static Result<std::unique_ptr<Orphans>> adopt(EventLoop& loop);
  ~Orphans();
  Orphans(const Orphans&) = delete;
  Orphans& operator=(const Orphans&) = delete;

  /// Ends all orphans and their descendants, except processes that a remote shell keeps for later
  /// calls. Returns those that still exist when `by` has passed: they belong to other users, or are
  /// stuck in the kernel.
  std::vector<pid_t> end(Deadline by);

 private:
  explicit Orphans(EventLoop& loop) : loop_(loop) {}
  void reap();
  /// Whether the child was neither started by this process nor existed before adopt().
  bool is_orphan(pid_t child) const;
  std::vector<pid_t> find() const;

  EventLoop& loop_;
  Descriptor signals_;
  sigset_t mask_before_{};
  int subreaper_before_ = 0;
  std::vector<pid_t> children_before_;
};

/// Set in the environment of remote shells, which may keep a connection open for the next call.
inline constexpr const char* kSparedMark = "STORMO_REMOTE_SHELL=1";

/// Processes that have `assignment` ("NAME=value") in the environment they were started with.
std::vector<pid_t> processes_marked(const std::string& assignment);

}  // namespace stormo::launch
