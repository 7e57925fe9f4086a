#include <stormo/launch/process/stopped_processes.h>

#include <fmt/format.h>

#include <stormo/base/proc.h>

namespace stormo::launch {

bool is_stopped(pid_t pid) {
  const auto state = process_state(fmt::format("/proc/{}", pid));
  return state && state->letter == 'T';
}

bool StoppedProcesses::is_stopped_too_long(pid_t pid) {
  if (!is_stopped(pid)) {
    looks_.erase(pid);
    return false;
  }
  return ++looks_[pid] * kInterval > limit_;
}

}  // namespace stormo::launch
