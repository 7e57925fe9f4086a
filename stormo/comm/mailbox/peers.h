#pragma once

#include <poll.h>

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/comm/mailbox/matching.h>

namespace stormo::comm {

/// Bytes that are copied, or added up in a checksum, while the lock is held: longer messages go in
/// pieces of this size then, and others have their turn between them.
inline constexpr std::size_t kPieceUnderLock = 256 << 10;

/// The peers that a mailbox reaches in one way: those of its host, or those of other hosts. Moves
/// records without waiting. All calls but bring(), settle(), sleep() and wake() are made under the
/// mailbox's lock.
class Peers {
 public:
  virtual ~Peers() = default;
  Peers() = default;
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  /// Queues a record, behind those before it. One for a peer that takes part no more is dropped.
  virtual void put(const Matching::Outgoing& outgoing) = 0;
  /// Sends what can be sent at once; true if anything was.
  virtual Result<bool> push(Matching& matching, Matching::Effects& out) = 0;
  /// Receives what has come; true if anything has. Says once of each peer that it takes part no
  /// more, when nothing of it is left to receive.
  virtual Result<bool> pull(Matching& matching, Matching::Effects& out) = 0;
  /// Whether a peer must do something before this rank may leave: take a record, or read a copy.
  virtual bool is_busy() const = 0;

  /// Whether this rank can read the bytes of a message where they lie: by bring().
  virtual bool can_read(const Matching::Fetch& /*fetch*/) { return false; }
  /// Copies bytes of a message from `offset` on. Without the lock; several threads may. kCancelled:
  /// its sender has ended it, and may use its memory again.
  virtual Status bring(const Matching::Fetch& /*fetch*/, std::size_t /*offset*/,
                       std::span<std::byte> /*to*/) {
    return {};
  }

  /// Nothing is moved any more: neither push() nor pull() is called after this. `offers`: peers of
  /// this host may know of sends whose memory is about to be used again.
  virtual void abandon(bool offers) = 0;
  /// Waits until what was pushed has reached the peers' hosts, so that it comes although this
  /// process ends; at most until `by`, and for a limited time.
  virtual void settle(Deadline /*by*/) {}

  /// What sleep() waits for.
  struct Watch {
    Rank peer = kAnyRank;  ///< who is expected first
    std::uint32_t number = 0;
    std::vector<pollfd> lines = {};
  };
  /// Begins to watch: sleep() with this value ends when a peer has moved something since.
  virtual Watch watch(Rank peer) = 0;
  /// Waits for a peer or wake(), or `by`. `actively`: at first without sleep, because a caller
  /// waits. Several threads may.
  virtual void sleep(Watch& watch, bool actively, Deadline by) = 0;
  virtual void wake() = 0;
};

}  // namespace stormo::comm
