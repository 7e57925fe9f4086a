#pragma once

#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::transport {

/// Meeting point of the ranks of one host, held by its local rank 0: an abstract Unix socket (no
/// file) through which they hand each other their memory files. Closed, and gone, after the
/// exchange.
class HostHub {
 public:
  static Result<std::unique_ptr<HostHub>> open();
  ~HostHub();
  HostHub(const HostHub&) = delete;
  HostHub& operator=(const HostHub&) = delete;

  /// What the other ranks need to find and enter it; pass it through the Store (it is a
  /// capability).
  const std::string& ticket() const { return ticket_; }

  /// Local rank 0's part: creates the host region, waits for the other local_size-1 ranks, hands
  /// out everybody's memory. A peer of another user, or without the ticket, is turned away.
  Result<HostParts> host(int local_size, Arena& arena, Deadline by);

 private:
  HostHub(int fd, std::string ticket) : fd_(fd), ticket_(std::move(ticket)) {}
  int fd_;
  std::string ticket_;
};

/// The other ranks' part.
Result<HostParts> enter_hub(const std::string& ticket, int local_rank, int local_size, Arena& arena,
                            Deadline by);

/// A host with one rank: nothing to exchange.
Result<HostParts> lone_host(Arena& arena);

}  // namespace stormo::transport
