#pragma once

#include <cstdint>
#include <string>

#include <stormo/base/status.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::server {

/// Where a process runs. A network namespace counts as a host, as with the other transports.
struct Place {
  std::string host;  ///< boot and network namespace; empty where /proc is not mounted
  transport::ProcessName process;
  bool operator==(const Place&) const = default;

  static Place own();
  /// Whether a process there can share memory with one here, and be watched.
  bool is_same_host(const Place& other) const;
};

/// Maps a memory file of another process through /proc. kNotFound when that process is not on this
/// host, in other namespaces, or of another user: then there is no shared memory. `fd`: its number
/// in that process; `bytes`: the least size.
Result<transport::MemoryFile> map_file_of(const Place& owner, int fd, std::uint64_t bytes);

}  // namespace stormo::server
