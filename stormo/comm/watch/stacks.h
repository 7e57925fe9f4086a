#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include <stormo/base/clock.h>

namespace stormo::comm {

/// What one thread is doing, as far as it is known.
struct ThreadState {
  pid_t id = 0;
  std::string name;
  char state = '?';         ///< as in /proc: R runs, S sleeps, D waits for a device, T is stopped
  std::string waits_in;     ///< function of the kernel; empty without permission
  std::string system_call;  ///< number and arguments, or "running"
  std::vector<std::string> stack;  ///< innermost first; empty when it cannot be walked
};

/// The threads of this process except the calling one, the main thread first. Each thread walks its
/// own stack in a handler of SIGURG, which interrupts its system call; not if the program handles
/// that signal itself. Blocks for at most `at_most` in all.
std::vector<ThreadState> threads_of_this_process(Duration at_most);

/// The threads of another process of this user, from /proc; without stacks.
std::vector<ThreadState> threads_of_process(pid_t pid);

/// "its process is stopped (SIGSTOP or a debugger)", "its process is gone", ...
std::string describe_process(pid_t pid);

/// A name of this process's PID namespace and host. Process identifiers are comparable only if this
/// is equal.
std::string process_namespace();

}  // namespace stormo::comm
