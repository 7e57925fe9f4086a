#pragma once

#include <sched.h>
#include <sys/types.h>

#include <array>

#include <stormo/launch/process/cpus.h>

namespace stormo::launch {

/// What a started process takes on before its program runs.
struct Place {
  pid_t group = 0;    ///< process group to enter; 0: a session of its own
  bool bind = false;  ///< to `cpus`
  cpu_set_t cpus = {};
  // descriptors above 2, which become the standard ones
  int input = -1, output = -1, error = -1;  ///< -1: unchanged
};

cpu_set_t to_cpu_set(const CpuList& cpus);

/// For the process that calls it. Makes system calls only, so it may run between vfork and exec.
/// Null, or what failed, with errno.
const char* take_place(const Place& place);

/// How a process was started, told over a pipe by the process itself.
struct Outcome {
  pid_t pid = 0;  ///< of the process; 0: it could not start
  int error = 0;  ///< errno of what failed
  std::array<char, 32> what = {};
};

/// Tells what failed, and ends the process. Makes system calls only.
[[noreturn]] void give_up(int pipe, const char* what);
/// False: the process ended, or has executed its program, and told nothing.
bool read_outcome(int pipe, Outcome& out);

inline constexpr const char* kNoProcess =
    "start a process; the limit of processes or memory is reached (ulimit -u)";

}  // namespace stormo::launch
