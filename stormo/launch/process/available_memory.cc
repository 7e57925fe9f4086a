#include <stormo/launch/process/available_memory.h>

#include <algorithm>
#include <fstream>
#include <limits>
#include <string>

#include <stormo/launch/process/control_groups.h>

namespace stormo::launch {

std::uint64_t available_memory() {
  std::uint64_t available = std::numeric_limits<std::uint64_t>::max();
  std::ifstream file("/proc/meminfo");
  std::string line;
  while (std::getline(file, line)) {
    if (line.starts_with("MemAvailable:")) available = std::stoull(line.substr(13)) << 10;
  }
  const auto limit = control_group_limit("memory", "memory.max", "memory.limit_in_bytes");
  return limit ? std::min(available, *limit) : available;
}

}  // namespace stormo::launch
