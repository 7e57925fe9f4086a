#include <stormo/launch/memory_kills.h>

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <vector>

#include <stormo/base/file.h>
#include <stormo/base/units.h>

namespace stormo::launch {
namespace {

namespace fs = std::filesystem;

/// The number behind `name` in a file of "name number" lines; 0 when there is none.
std::int64_t counter(const fs::path& file, const std::string& name) {
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string word;
    std::int64_t value = 0;
    if (words >> word >> value && word == name) return value;
  }
  return 0;
}

std::int64_t kills_of(const fs::path& group) {
  if (group.empty()) return 0;
  return counter(group / "memory.events", "oom_kill") +
         counter(group / "memory.oom_control", "oom_kill");
}

/// The control group that bounds this process's memory, out of lines "ID:CONTROLLERS:PATH". In a
/// container the path may be that of the host, and the group the root of what is mounted.
fs::path find_group(const fs::path& root) {
  std::ifstream in(root / "proc/self/cgroup");
  for (std::string line; std::getline(in, line);) {
    const std::size_t first = line.find(':');
    const std::size_t second = line.find(':', first + 1);
    if (second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const bool second_version = controllers.empty();
    if (!second_version && ("," + controllers + ",").find(",memory,") == std::string::npos)
      continue;
    const std::string path = line.substr(second + 1);
    const fs::path base = root / (second_version ? "sys/fs/cgroup" : "sys/fs/cgroup/memory");
    const char* file = second_version ? "memory.events" : "memory.oom_control";
    for (const fs::path& folder : {base / fs::path(path).relative_path(), base})
      if (fs::exists(folder / file)) return folder;
  }
  return {};
}

/// The smallest limit on the way up; empty when there is none.
std::optional<std::int64_t> limit_of(fs::path group) {
  std::optional<std::int64_t> least;
  for (; group.has_relative_path(); group = group.parent_path()) {
    for (const char* file : {"memory.max", "memory.limit_in_bytes"}) {
      std::int64_t limit = 0;
      constexpr std::int64_t kNone = std::int64_t{1} << 60;
      std::istringstream text(first_line(group / file));
      if (text >> limit && limit < kNone && limit < least.value_or(kNone)) least = limit;
    }
  }
  return least;
}

}  // namespace

MemoryKills::MemoryKills(fs::path root)
    : root_(std::move(root)),
      group_(find_group(root_)),
      in_group_(kills_of(group_)),
      on_machine_(counter(root_ / "proc/vmstat", "oom_kill")) {}

std::string MemoryKills::why_killed() const {
  constexpr const char* kRemedy = "start fewer ranks, use a smaller batch, or give it more memory";
  if (!group_.empty() && kills_of(group_) > in_group_) {
    const auto limit = limit_of(group_);
    return fmt::format(
        "out of memory: the kernel ended the process because its control group{} is "
        "full; {}",
        limit ? fmt::format(", which may use {},", format_bytes(*limit)) : "", kRemedy);
  }
  if (counter(root_ / "proc/vmstat", "oom_kill") > on_machine_)
    return fmt::format(
        "out of memory: the kernel has ended processes of this machine since the job began, most "
        "likely this one; {}",
        kRemedy);
  return {};
}

}  // namespace stormo::launch
