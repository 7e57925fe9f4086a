#pragma once

#include <cstdint>
#include <memory>
#include <optional>

#include <stormo/base/clock.h>
#include <stormo/transport/transport.h>

namespace stormo::transport {

/// The faults to inject at one endpoint. Messages are counted from 0, in the order in which this
/// endpoint sends them.
struct FaultPlan {
  std::uint64_t seed = 0;
  /// Each exchange starts late with this probability, by up to `max_delay`.
  double delay_probability = 0;
  Duration max_delay{0};
  /// This message and all later ones to the same peer are never sent, because a stream has no gaps.
  /// The receiver misses its deadline.
  std::optional<std::uint64_t> drop_message;
  /// One bit of this message's payload is flipped before the inner transport gets it, so the
  /// checksum is valid and the receiver gets wrong data. Empty payloads are unchanged.
  std::optional<std::uint64_t> corrupt_message;
  /// Before this message is sent, the endpoint is destroyed, as if its process had died.
  std::optional<std::uint64_t> cut_before_message;
};

/// The faults that were injected, for assertions of tests.
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
