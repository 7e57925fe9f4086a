#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/launch/process/cpus.h>
#include <stormo/transport/net/socket.h>

namespace stormo::launch {

using transport::Descriptor;

/// A program to start. It gets default signal actions, except that it ignores what this process
/// ignores (nohup), and no descriptor but those named here.
struct Child {
  std::string file;  ///< path of the executable
  std::vector<std::string> argv;
  std::vector<std::string> environment;  ///< "NAME=value"
  int input = -1;                        ///< standard input; -1: /dev/null
  int output = -1;                       ///< standard output; -1: that of this process
  int error = -1;                        ///< standard error; -1: that of this process
  std::optional<int> inherited;          ///< one more descriptor that stays open, with its number
  pid_t group = 0;                       ///< process group to enter; 0: a session of its own
  CpuList cpus;                          ///< empty: not bound
};

/// Starts the program. The kernel kills it when the calling thread ends. Returns failures of the
/// child before its program runs.
Result<pid_t> spawn(const Child& child);

/// Whether this child was started, by spawn(), a ForkServer or Guard, and is no adopted orphan.
/// Call forget_child() after waiting for a child. The list is one per process.
bool is_started_child(pid_t pid);
void note_child(pid_t pid);
void forget_child(pid_t pid);

/// A descriptor that becomes readable when the process ends (Linux 5.3).
Result<Descriptor> open_process(pid_t pid);

/// The path of `program`, searched for as a shell does; the failure says why there is none.
Result<std::string> find_program(const std::string& program, std::string_view search_path);

/// A search path (PATH, PYTHONPATH) without its empty and relative elements, which mean folders of
/// whoever owns the current one: for programs that the user has not named.
std::string absolute_folders(std::string_view search_path);

/// Both ends of a pipe, closed on exec.
struct Pipe {
  Descriptor read;
  Descriptor write;
};
Result<Pipe> make_pipe();

/// As `ps` shows a guard that waits.
inline constexpr const char* kGuardName = "stormo-guard";

/// Two processes that end a job as soon as their creator has ended, even by SIGKILL, and all who
/// hold their pipe, too (outlive.h). Each waits for the end of that pipe, then kills the process
/// group of the job, which the first one leads, and all processes outside the group with the job's
/// mark in their environment. So grandchildren end too, also when one of the two was killed with
/// the creator.
class Guard {
 public:
  /// Call before other threads are started: the processes are forks without exec.
  static Result<Guard> start();
  Guard(Guard&&) noexcept;
  Guard& operator=(Guard&&) = delete;
  ~Guard();

  pid_t group() const { return pid_; }
  /// "STORMO_GUARD=...", unique to this job; must be set in the environment of every rank.
  const std::string& mark() const { return mark_; }
  /// Sends a signal to every process of the group except the one that leads it.
  void signal(int signal) const;
  /// Ends every process of the group, and both processes of the guard.
  void kill_all();

 private:
  Guard(Descriptor lifeline, std::string mark)
      : lifeline_(std::move(lifeline)), mark_(std::move(mark)) {}
  pid_t pid_ = 0;     ///< leads the group
  pid_t second_ = 0;  ///< in a group of its own
  Descriptor lifeline_;
  std::string mark_;
};

}  // namespace stormo::launch
