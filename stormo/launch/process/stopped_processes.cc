#include <stormo/launch/process/stopped_processes.h>

#include <fmt/format.h>

#include <fstream>
#include <string>

namespace stormo::launch {

// "4711 (the name) T ..."
bool is_stopped(pid_t pid) {
  std::ifstream file(fmt::format("/proc/{}/stat", pid));
  std::string line;
  std::getline(file, line);
  const std::size_t end = line.rfind(") ");
  return end != std::string::npos && line.compare(end + 2, 1, "T") == 0;
}

bool StoppedProcesses::is_stopped_too_long(pid_t pid) {
  if (!is_stopped(pid)) {
    looks_.erase(pid);
    return false;
  }
  return ++looks_[pid] * kInterval > limit_;
}

}  // namespace stormo::launch
