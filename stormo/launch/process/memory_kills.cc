#include <stormo/launch/process/memory_kills.h>

#include <fmt/format.h>

#include <fstream>
#include <sstream>
#include <utility>

#include <stormo/base/units.h>
#include <stormo/launch/process/control_groups.h>

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

/// The control group that bounds this process's memory; empty where none says what it did.
fs::path find_group(const fs::path& root) {
  for (const fs::path& folder : control_groups("memory", root))
    if (fs::exists(folder / "memory.events") || fs::exists(folder / "memory.oom_control"))
      return folder;
  return {};
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
    const auto limit = control_group_limit("memory", "memory.max", "memory.limit_in_bytes", root_);
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
