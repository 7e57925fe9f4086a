#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <stormo/base/clock.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

/// What goes wrong at one endpoint. Messages are counted from 0, in the order in which this
/// endpoint sends them.
struct FaultPlan {
  std::uint64_t seed = 0;
  /// Each exchange starts late with this probability, by up to `max_delay`.
  double delay_probability = 0;
  Duration max_delay{0};
  /// This message is never sent, nor is any later one to the same peer: a stream has no holes. The
  /// receiver runs into its deadline.
  std::optional<std::uint64_t> drop_message;
  /// One bit of this message's payload is flipped above the inner transport, whose checksum (over
  /// what it was given) holds: the receiver gets wrong data. Empty payloads stay as they are.
  std::optional<std::uint64_t> corrupt_message;
  /// Before this message is sent, the endpoint is destroyed as by a death of its process.
  std::optional<std::uint64_t> cut_before_message;
};

/// Faults that have happened; a test asserts on them.
struct FaultCounts {
  std::uint64_t delays = 0;
  std::uint64_t dropped_messages = 0;
  std::uint64_t corrupted_messages = 0;
  std::uint64_t cuts = 0;
};

class FaultyTransport : public Transport {
 public:
  virtual FaultCounts faults() const = 0;
};

std::unique_ptr<FaultyTransport> make_faulty(std::unique_ptr<Transport> inner, FaultPlan plan);

}  // namespace stormo::transport
