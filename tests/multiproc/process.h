#pragma once

#include <sys/types.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace stormo::testing {

/// Waits for events, never for time: this bound only ends a test that is broken.
inline constexpr std::chrono::seconds kGenerous{60};

/// A program under test with its output. Killed, if it still runs, at the end of its test.
/// Everything it starts inherits a mark in its environment, by which it can be found.
class Process {
 public:
  explicit Process(std::vector<std::string> argv, const std::vector<std::string>& variables = {});
  ~Process();
  Process(const Process&) = delete;
  Process& operator=(const Process&) = delete;

  pid_t pid() const { return pid_; }
  /// After SIGSTOP it is stopped, and not only about to be.
  void signal(int signal) const;
  /// Reads output until `text` has appeared `times` times on standard output.
  bool wait_for_output(const std::string& text, int times = 1);
  /// Reads everything and waits: the exit status, 128 + signal, or -1 when it does not end.
  int wait(std::chrono::nanoseconds at_most = kGenerous);
  /// Waits, without reading, until the pipe of standard output takes no more: that of `pid`, one of
  /// its relatives, or its own.
  bool wait_until_full(pid_t pid = 0) const;
  /// Reads a little of standard output, if there is some: less than its writer may have waiting.
  void read_a_page();
  /// As wait(), but reads nothing before the process has ended.
  int wait_unread(std::chrono::nanoseconds at_most);

  const std::string& out() const { return out_; }
  const std::string& err() const { return err_; }

  /// Processes with this one's mark, this one included, and their command lines.
  struct Relative {
    pid_t pid = 0;
    pid_t parent = 0;
    std::string command;
  };
  std::vector<Relative> relatives() const;
  /// The process that runs `program` as this rank; -1: none does.
  pid_t rank(int rank, const std::string& program) const;
  /// Until no marked process is left.
  bool wait_until_all_gone(std::chrono::nanoseconds at_most) const;

 private:
  bool read_some(std::chrono::steady_clock::time_point by);

  std::string mark_;
  pid_t pid_ = 0;
  int out_fd_ = -1;
  int err_fd_ = -1;
  std::string out_;
  std::string err_;
};

/// Runs to its end: exit status and output.
struct Outcome {
  int status = -1;
  std::string out;
  std::string err;
  std::chrono::nanoseconds took{};
};
Outcome run_to_end(const std::vector<std::string>& argv,
                   const std::vector<std::string>& variables = {});

/// A file of /proc; what could be read, when its process ends meanwhile.
std::string read_proc(const std::string& path);
std::vector<std::string> split_lines(const std::string& text);
int count(const std::string& text, const std::string& part);

}  // namespace stormo::testing
