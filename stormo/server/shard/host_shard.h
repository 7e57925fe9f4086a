#pragma once

#include <cstddef>

#include <stormo/server/shard.h>

namespace stormo::server {

/// A Shard in memory that all workers of a host map. There is no server process: who pushes does
/// the work of the server itself. One object per process and worker; the memory is shared.
class HostShard : public Shard {
 public:
  /// Bytes of the memory; pages that are never touched are not used.
  virtual std::size_t bytes() const = 0;
  /// Makes the shard in `memory` (bytes() long, aligned to 4096, borrowed), with all values 0; then
  /// others may attach to it. Values are set before the first read.
  virtual void create(std::byte* memory) = 0;
  /// Uses a shard that another object has created in `memory`, which is borrowed.
  virtual void attach(std::byte* memory) = 0;
};

}  // namespace stormo::server
