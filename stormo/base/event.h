#pragma once

#include <cstdint>
#include <string_view>

#include <stormo/base/clock.h>
#include <stormo/base/ids.h>

namespace stormo {

/// What the time of a rank is spent on. Every interval of a step belongs to exactly one lane.
enum class Lane : std::uint8_t { kCompute, kCommunication, kWait, kData };
constexpr int kNumLanes = 4;
std::string_view to_string(Lane lane);

/// One finished interval of time on one rank. `name` is valid only during the call of the Sink.
struct Event {
  Lane lane = Lane::kCompute;
  std::string_view name{};  ///< "forward", "all_reduce", ...
  Rank rank = 0;
  std::int64_t step = -1;   ///< training step, or -1 outside of one
  std::uint64_t bytes = 0;  ///< payload of the calling rank, 0 when it has none
  /// Version of the parameters that a computation, or a pushed gradient, used, where there are
  /// several: how many updates they had. Else -1.
  std::int64_t weights = -1;
  std::int64_t staleness = -1;  ///< of a push to a server shard: of its gradient. Else -1
  TimePoint start{};
  TimePoint end{};
};

/// Consumer of Events. `record` may be called from any thread, must not block and must not fail.
class Sink {
 public:
  virtual ~Sink() = default;
  virtual void record(const Event& event) = 0;
};

}  // namespace stormo
