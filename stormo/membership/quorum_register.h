#pragma once

#include <optional>
#include <string>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/membership/acceptor_link.h>
#include <stormo/membership/register.h>
#include <stormo/protocol/register/proposer.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/net/socket.h>

namespace stormo::membership {

/// Stormo's own register: a RegisterServer on each of one to three hosts, of which a majority
/// decides. The thread of the caller does all of it.
class QuorumRegister final : public Register {
 public:
  struct Options {
    std::vector<transport::HostPort> acceptors;  ///< all of them, in the same order everywhere
    transport::Secret secret;
  };
  /// Connects in the first call. One process may have any number of these.
  explicit QuorumRegister(Options options);

  /// kDeadlineExceeded says which acceptors are missing. kCorrupt if the record is none.
  Result<EpochRecord> read(Deadline by) override;
  /// Also kCancelled if later records hide whether `next` was written before them.
  Result<Swap> compare_and_swap(const EpochRecord& next, Deadline by) override;

 private:
  QuorumRegister(Options options, std::uint64_t id);
  Result<protocol::RegisterOutcome> run(Deadline by);
  bool restart_when_due(TimePoint now);
  bool exchange(TimePoint now);
  void connect_all();
  void wait(TimePoint until) const;
  Status too_late() const;

  std::vector<AcceptorLink> links_;
  protocol::Proposer proposer_;
  Rng chance_;
  bool has_read_ = false;
  int restarts_ = 0;                     // of this call
  std::optional<TimePoint> restart_at_;  // once the request is contested
};

}  // namespace stormo::membership
