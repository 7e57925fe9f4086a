#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>
#include <stormo/base/status.h>

namespace stormo::transport {

/// A message to send: borrowed until exchange() returns.
struct Outgoing {
  Rank to = 0;
  Tag tag = 0;
  std::span<const std::byte> bytes;
};

/// Is told how much of a message has come, so that it can be used while the rest is under way.
class Progress {
 public:
  virtual ~Progress() = default;
  /// On the exchanging thread, with the number of bytes from the beginning that may be read. What
  /// they are is not checked before the message is complete. Not every transport calls it, nor for
  /// every part.
  virtual void received(std::size_t bytes) = 0;
};

/// A message to receive; `bytes.size()` is its exact length.
struct Incoming {
  Rank from = 0;
  Tag tag = 0;
  std::span<std::byte> bytes;
  Progress* progress = nullptr;  ///< may be null; borrowed
};

/// What an endpoint has moved so far. Tests hold these equal to analysis/cost.
struct Counters {
  std::uint64_t messages_sent = 0;
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t payload_bytes_received = 0;
};

/// One rank's end of a fabric: ordered, tagged messages between two ranks. Nothing more.
///
/// Between each ordered pair of ranks messages arrive in the order sent. Tag and length must be
/// equal on both sides: a difference is kMismatch at the receiver and the payload is not delivered.
/// exchange() progresses all its parts at once, so that rings and pairwise swaps of any size cannot
/// deadlock; several parts may name the same peer and keep their order. One thread at a time per
/// endpoint, except fail() and counters(). After the first failure (deadline included) the
/// endpoint stays failed with that cause: streams may be cut in the middle of a message.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  /// Returns when every send is accepted (its bytes may be reused) and every receive is complete.
  virtual Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                          Deadline by) = 0;

  /// Any thread: present and future calls end with `cause`; the first cause wins.
  virtual void fail(Status cause) = 0;

  virtual Counters counters() const = 0;

  Status send(Rank to, Tag tag, std::span<const std::byte> bytes, Deadline by) {
    const Outgoing out{to, tag, bytes};
    return exchange({&out, 1}, {}, by);
  }
  Status recv(Rank from, Tag tag, std::span<std::byte> bytes, Deadline by) {
    const Incoming in{from, tag, bytes};
    return exchange({}, {&in, 1}, by);
  }
};

}  // namespace stormo::transport
