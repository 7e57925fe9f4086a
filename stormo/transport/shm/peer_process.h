#pragma once

#include <sys/types.h>

#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/transport/net/socket.h>

namespace stormo::transport {

/// A unique name of a process on this host: its number, its PID namespace and its start time. A
/// plain value for shared memory; all zeros: no process.
struct ProcessName {
  pid_t pid = 0;
  std::uint64_t pid_namespace = 0;
  std::uint64_t started = 0;  ///< start time, in clock ticks since the host started
  bool operator==(const ProcessName&) const = default;

  /// The name of the calling process; all zeros where /proc is not mounted.
  static ProcessName own();
};

/// A handle of another process of this host, by which it can be killed. It never refers to a later
/// process with the same number.
class PeerProcess {
 public:
  explicit PeerProcess(const ProcessName& name);

  /// Whether it has ended: none of its threads or their system calls runs any more.
  bool is_gone() const { return is_gone_; }
  /// Whether this process can kill it: same user, same namespace, a kernel with pidfd (5.3).
  bool can_be_ended() const { return process_.valid(); }
  /// Stopped by a signal (SIGSTOP, SIGTSTP); `or_traced`: or by a debugger.
  bool is_stopped(bool or_traced = false) const;
  /// SIGKILL; from then on it runs no instruction of its own.
  void end();
  /// Blocks until it has ended, for at most `at_most`.
  void wait(Duration at_most);

 private:
  ProcessName name_;
  Descriptor process_;
  bool is_gone_ = false;
};

}  // namespace stormo::transport
