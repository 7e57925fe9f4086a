#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include <stormo/base/event.h>

namespace stormo::train {

/// Sums the time that one rank spends per lane, names rank and step where the source of an Event
/// knows neither, and passes every Event on. Any thread may record.
class LaneTimer final : public Sink {
 public:
  explicit LaneTimer(Rank rank) : rank_(rank) {}

  /// Receives all Events; null: none. Not owned. Not while others record.
  void pass_to(Sink* sink) { next_ = sink; }
  void set_step(std::int64_t step) { step_ = step; }
  void record(const Event& event) override;
  /// Seconds per lane since the last call.
  std::array<double, kNumLanes> take();

 private:
  Rank rank_;
  Sink* next_ = nullptr;
  std::atomic<std::int64_t> step_{-1};
  std::array<std::atomic<std::int64_t>, kNumLanes> nanoseconds_{};
};

/// Records the life of the object as one Event.
class Interval {
 public:
  Interval(LaneTimer& timer, Lane lane, std::string_view name)
      : timer_(timer), lane_(lane), name_(name), start_(std::chrono::steady_clock::now()) {}
  ~Interval() {
    timer_.record(
        {.lane = lane_, .name = name_, .start = start_, .end = std::chrono::steady_clock::now()});
  }
  Interval(const Interval&) = delete;
  Interval& operator=(const Interval&) = delete;

 private:
  LaneTimer& timer_;
  Lane lane_;
  std::string_view name_;
  TimePoint start_;
};

}  // namespace stormo::train
