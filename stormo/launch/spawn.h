#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/launch/cpus.h>
#include <stormo/transport/socket.h>

namespace stormo::launch {

using transport::Descriptor;

/// A program to start. It gets default signal actions and no descriptor but those named here.
struct Child {
  std::string file;  ///< path of the executable
  std::vector<std::string> argv;
  std::vector<std::string> environment;  ///< "NAME=value"
  int input = -1;                        ///< standard input; -1: /dev/null
  int output = -1;                       ///< standard output; -1: that of this process
  int error = -1;                        ///< standard error; -1: that of this process
  std::optional<int> inherited;          ///< one more descriptor that stays open, under its number
  pid_t group = 0;                       ///< process group to enter; 0: a session of its own
  CpuList cpus;                          ///< empty: not bound
};

/// Starts it, to be killed by the kernel when the calling thread ends. Failures of the child before
/// its program runs are returned here.
Result<pid_t> spawn(const Child& child);

/// A descriptor that becomes readable when the process ends (Linux 5.3).
Result<Descriptor> open_process(pid_t pid);

/// The file that `program` names, looked up as a shell would; says what is wrong when there is
/// none.
Result<std::string> find_program(const std::string& program, std::string_view search_path);

/// Both ends of a pipe, closed on exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};
Result<Pipe> make_pipe();

/// A process that kills a whole process group as soon as its creator is gone, even by SIGKILL: it
/// leads the group and waits for the end of a pipe. So grandchildren die too.
class Guard {
 public:
  /// Call before other threads are started: the process is a fork without exec.
  static Result<Guard> start();
  Guard(Guard&&) noexcept;
  Guard& operator=(Guard&&) = delete;
  ~Guard();

  pid_t group() const { return pid_; }
  /// To every process of the group except the guard.
  void signal(int signal) const;
  /// Ends every process of the group, and the guard.
  void kill_all();

 private:
  Guard(pid_t pid, Descriptor lifeline) : pid_(pid), lifeline_(std::move(lifeline)) {}
  pid_t pid_ = 0;
  Descriptor lifeline_;
};

}  // namespace stormo::launch
