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

/// Called while a message is being received, so that its first bytes can be used before the rest
/// has arrived.
class Progress {
 public:
  virtual ~Progress() = default;
  /// Called on the thread of exchange(), with the number of bytes from the beginning that may be
  /// read. Checksums are checked only when the message is complete. A transport need not call it.
  virtual void received(std::size_t bytes) = 0;
};

/// A message to receive; `bytes.size()` is its exact length.
struct Incoming {
  Rank from = 0;
  Tag tag = 0;
  std::span<std::byte> bytes;
  Progress* progress = nullptr;  ///< may be null; borrowed
};

/// What an endpoint has sent and received so far. Tests compare these numbers with analysis::cost.
struct Counters {
  std::uint64_t messages_sent = 0;
  std::uint64_t payload_bytes_sent = 0;
  std::uint64_t messages_received = 0;
  std::uint64_t payload_bytes_received = 0;
};

/// One rank's endpoint for ordered, tagged messages between two ranks.
///
/// Between each ordered pair of ranks messages arrive in the order sent. Tag and length must be
/// equal on both sides: a difference is kMismatch at the receiver and the payload is not delivered.
/// exchange() progresses all sends and receives at the same time, so rings and pairwise exchanges
/// of any size cannot deadlock. Several messages may have the same peer; they keep their order. One
/// thread at a time per endpoint, except fail() and counters(). After the first failure (including
/// a missed deadline) the endpoint stays failed with that cause, because a stream may have stopped
/// in the middle of a message.
class Transport {
 public:
  virtual ~Transport() = default;
  Transport() = default;
  Transport(const Transport&) = delete;
  Transport& operator=(const Transport&) = delete;

  virtual Rank rank() const = 0;
  virtual int size() const = 0;

  /// Blocks until every send is accepted (its bytes may be reused) and every receive is complete,
  /// at most until `by`.
  virtual Status exchange(std::span<const Outgoing> sends, std::span<const Incoming> receives,
                          Deadline by) = 0;

  /// Makes current and future calls return `cause`; only the first cause counts. Any thread.
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
