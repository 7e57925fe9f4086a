#pragma once

#include <sys/types.h>

#include <cstdint>

#include <stormo/base/clock.h>
#include <stormo/transport/net/socket.h>

namespace stormo::transport {

/// A process by a name that no other one of this host ever has: its number, the namespace in which
/// it has that number, and when it started. A plain value for shared memory; zeros name nobody.
struct ProcessName {
  pid_t pid = 0;
  std::uint64_t pid_namespace = 0;
  std::uint64_t started = 0;  ///< clock ticks since the host did
  bool operator==(const ProcessName&) const = default;

  /// Of the calling process; nobody's where /proc is not mounted.
  static ProcessName own();
};

/// Another process of this host, held so that it can be ended for certain: never one that got its
/// number later.
class PeerProcess {
 public:
  explicit PeerProcess(const ProcessName& name);

  /// Whether it has ended: none of its threads runs any more, nor a system call of theirs.
  bool is_gone() const { return is_gone_; }
  /// Whether this process can end it: same user, same namespace, a kernel with pidfd (5.3).
  bool can_be_ended() const { return process_.valid(); }
  /// Stopped by a signal (SIGSTOP, SIGTSTP).
  bool is_stopped() const;
  /// SIGKILL; from then on it runs no instruction of its own.
  void end();
  /// Waits until it has ended, or `at_most`.
  void wait(Duration at_most);

 private:
  ProcessName name_;
  Descriptor process_;
  bool is_gone_ = false;
};

}  // namespace stormo::transport
