#include <stormo/launch/process/available_memory.h>

#include <unistd.h>

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
  return limit ? std::min(available, *limit - std::min(*limit, own_memory())) : available;
}

std::uint64_t own_memory() {
  std::ifstream file("/proc/self/statm");
  std::uint64_t size = 0, resident = 0, shared = 0;  // pages
  if (!(file >> size >> resident >> shared)) return 0;
  return (resident - shared) * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace stormo::launch
