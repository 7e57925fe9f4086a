#pragma once

#include <cstddef>
#include <map>
#include <mutex>
#include <string>

#include <stormo/base/event.h>
#include <stormo/observe/trace.h>

namespace stormo::observe {

/// Keeps the newest `capacity` Events of one rank in memory; older ones are dropped and counted.
/// About 56 bytes per event, allocated as events come.
class TraceSink final : public Sink {
 public:
  static constexpr std::size_t kDefaultCapacity = std::size_t{1} << 18;

  TraceSink(Rank rank, std::string host, std::size_t capacity = kDefaultCapacity);

  void record(const Event& event) override;
  /// The clock of rank 0 at the beginning and at the end; without them the rank's own is used.
  void begin_at(const ClockReading& reading);
  void end_at(const ClockReading& reading);
  /// The events recorded so far, oldest first.
  RankTrace snapshot() const;

 private:
  std::uint32_t intern(std::string_view name);

  mutable std::mutex mutex_;
  std::size_t capacity_;
  std::size_t next_ = 0;  ///< place of the oldest event, once the ring is full
  RankTrace trace_;
  std::map<std::string, std::uint32_t, std::less<>> name_index_;
};

}  // namespace stormo::observe
