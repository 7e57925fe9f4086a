#pragma once

#include <memory>
#include <string>

#include <stormo/base/clock.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>
#include <stormo/transport/shm/host_group.h>

namespace stormo::transport {

/// The socket by which the ranks of one host exchange their memory files. Local rank 0 owns it: an
/// abstract Unix socket (no file), which is closed after the exchange.
class HostListener {
 public:
  static Result<std::unique_ptr<HostListener>> open();
  ~HostListener();
  HostListener(const HostListener&) = delete;
  HostListener& operator=(const HostListener&) = delete;

  /// Address and credential for the other ranks; pass it through the Store only (it is a
  /// capability).
  const std::string& ticket() const { return ticket_; }

  /// For local rank 0: creates the host region, waits for the other local_size-1 ranks, at most
  /// until `by` or until the job has failed, and gives every rank the memory files of all. A peer
  /// of another user, or without the ticket, is refused.
  Result<HostParts> host(int local_size, Arena& arena, Deadline by, const Health* job = nullptr);

 private:
  HostListener(int fd, std::string ticket) : fd_(fd), ticket_(std::move(ticket)) {}
  int fd_;
  std::string ticket_;
};

/// For the other ranks: the same exchange; blocks at most until `by`, or until the job has failed.
Result<HostParts> join_host(const std::string& ticket, int local_rank, int local_size, Arena& arena,
                            Deadline by, const Health* job = nullptr);

/// For a host with one rank: no exchange is needed.
Result<HostParts> lone_host(Arena& arena);

}  // namespace stormo::transport
