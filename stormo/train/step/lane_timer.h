#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <mutex>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/event.h>

namespace stormo::train {

/// Measures for how much of the time each lane of one rank is busy, names rank and step where the
/// source of an Event knows neither, and passes every Event on. Any thread may record.
class LaneTimer final : public Sink {
 public:
  explicit LaneTimer(Rank rank) : rank_(rank) {}

  /// Receives all Events; null: none. Not owned. Not while others record.
  void pass_to(Sink* sink) { next_ = sink; }
  void set_step(std::int64_t step) { step_ = step; }
  void record(const Event& event) override;
  /// Seconds since the last call in which something went on in each lane, however many things at
  /// once. Of what had begun before, the part since then counts, when it ends.
  std::array<double, kNumLanes> take();

 private:
  void note(const Event& event);

  Rank rank_;
  Sink* next_ = nullptr;
  std::atomic<std::int64_t> step_{-1};

  /// By their ends; they do not touch each other.
  struct Span {
    TimePoint start, end;
  };
  std::mutex mutex_;
  TimePoint since_{};  // the last take()
  std::array<std::vector<Span>, kNumLanes> busy_;
};

/// Records the life of the object as one Event.
class Interval {
 public:
  /// `weights`: see Event.
  Interval(LaneTimer& timer, Lane lane, std::string_view name, std::int64_t weights = -1)
      : timer_(timer),
        lane_(lane),
        name_(name),
        weights_(weights),
        start_(std::chrono::steady_clock::now()) {}
  ~Interval() {
    timer_.record({.lane = lane_,
                   .name = name_,
                   .weights = weights_,
                   .start = start_,
                   .end = std::chrono::steady_clock::now()});
  }
  Interval(const Interval&) = delete;
  Interval& operator=(const Interval&) = delete;

 private:
  LaneTimer& timer_;
  Lane lane_;
  std::string_view name_;
  std::int64_t weights_;
  TimePoint start_;
};

}  // namespace stormo::train
