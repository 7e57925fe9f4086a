#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <stormo/base/clock.h>

namespace stormo::comm {

/// What one thread is doing, as far as it can be found out.
struct ThreadState {
  pid_t id = 0;
  std::string name;
  char state = '?';         ///< as in /proc: R runs, S sleeps, D waits for a device, T is stopped
  std::string waits_in;     ///< function of the kernel; empty when it may not be seen
  std::string system_call;  ///< number and arguments, or "running"
  std::vector<std::string> stack;  ///< innermost first; empty when it cannot be walked
};

/// The threads of this process but the calling one, the main thread first. Each walks its own stack
/// in a signal handler (SIGURG, which interrupts its system call; not when the program handles that
/// signal itself), so at most `at_most` is waited for all of them.
std::vector<ThreadState> threads_of_this_process(Duration at_most);

/// The threads of another process of this user, by /proc alone: without stacks.
std::vector<ThreadState> threads_of_process(pid_t pid);

/// "its process is stopped (SIGSTOP or a debugger)", "its process is gone", ...
std::string describe_process(pid_t pid);

/// What tells the process identifiers of this host and container from those of others.
std::string process_namespace();

}  // namespace stormo::comm
