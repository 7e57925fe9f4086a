#pragma once

#include <sys/types.h>

#include <cstdint>

namespace stormo::transport {

/// Tells a process of this host that is stopped or hangs from one that is only late, because it
/// waits for a core.
class PeerActivity {
 public:
  /// The process at the other end of a connected Unix socket.
  static PeerActivity of_socket(int fd);
  explicit PeerActivity(pid_t pid) : pid_(pid) {}

  /// Whether it has run or waited for a core since the last call. The first call has nothing to
  /// compare with: true unless the process is stopped. False where nothing is known of the process:
  /// it is on another host or in another PID namespace. Cost: two files of /proc for each thread.
  bool ran();

 private:
  pid_t pid_;
  bool looked_ = false;
  std::uint64_t nanoseconds_ = 0;  ///< running, or waiting for a core
};

}  // namespace stormo::transport
