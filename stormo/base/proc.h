#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <optional>
#include <vector>

namespace stormo {

/// What /proc tells of a process or a thread, see proc(5).
struct ProcessState {
  char letter = 0;  ///< 'R' runs or waits for a core, 'S' sleeps, 'T' is stopped, 't' by a debugger
  pid_t parent = 0;
  std::uint64_t started = 0;  ///< clock ticks after the boot
};
/// `folder`: "/proc/12", "/proc/12/task/13". Empty when there is no such process.
std::optional<ProcessState> process_state(const std::filesystem::path& folder);

/// The numbers among the names in a folder, in ascending order: the processes in /proc, the threads
/// in /proc/12/task. Those that can be read, when it goes away meanwhile.
std::vector<pid_t> numbers_in(const std::filesystem::path& folder);

}  // namespace stormo
