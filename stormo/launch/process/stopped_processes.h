#pragma once

#include <sys/types.h>

#include <chrono>
#include <map>

#include <stormo/base/clock.h>

namespace stormo::launch {

/// Whether a process is stopped now, by SIGSTOP or the like; not by a debugger. False if there is
/// none.
bool is_stopped(pid_t pid);

/// Finds processes that stay stopped, by looks at equal intervals. Time in which this process does
/// not run itself does not count: whoever stops a whole job, and lets it go on, changes nothing.
class StoppedProcesses {
 public:
  /// `limit`: after which a process has been stopped for too long.
  explicit StoppedProcesses(Duration limit) : limit_(limit) {}

  static constexpr Duration kInterval = std::chrono::seconds(1);
  /// One look. Whether the process has been stopped at each one for so long.
  bool is_stopped_too_long(pid_t pid);
  /// It has ended: the number may be another one's later.
  void forget(pid_t pid) { looks_.erase(pid); }

 private:
  Duration limit_;
  std::map<pid_t, int> looks_;  // in a row
};

}  // namespace stormo::launch
