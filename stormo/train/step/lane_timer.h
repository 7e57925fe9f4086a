#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <deque>
#include <mutex>
#include <optional>
#include <string_view>
#include <vector>

#include <c10/core/Event.h>

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
  /// From now on the times of the lane kCompute are those at which the device gets there, not those
  /// at which the host enqueues it. For the CPU the two are the same. Not while others record.
  void use_clock_of(c10::Device device);
  void record(const Event& event) override;
  /// Seconds since the last call in which something went on in each lane, however many things at
  /// once. Of what had begun before, the part since then counts, when it ends. Waits until the
  /// device has done what was recorded.
  std::array<double, kNumLanes> take();

  /// A time in a lane: of the host, or of a device that gets there later.
  struct Moment {
    TimePoint host = {};
    std::optional<c10::Event> device = {};
  };
  Moment now(Lane lane);
  /// Records an Event of [start, now(event.lane)], at once or when the device has got there.
  void record(Event event, Moment start);

 private:
  /// An Event whose times only the device knows.
  struct OnDevice {
    Event event;
    c10::Event start, end;
  };
  void note(const Event& event);
  void record_done(bool wait);

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

  void set_zero();

  std::optional<c10::Device> device_;  // none: the host's clock is that of all lanes
  Moment zero_;                        // the same time on both clocks
  std::deque<OnDevice> on_device_;     // in the order of their ends
};

/// Records the life of the object as one Event.
class Interval {
 public:
  /// `weights`: see Event.
  Interval(LaneTimer& timer, Lane lane, std::string_view name, std::int64_t weights = -1)
      : timer_(timer), lane_(lane), name_(name), weights_(weights), start_(timer.now(lane)) {}
  ~Interval() {
    timer_.record({.lane = lane_, .name = name_, .weights = weights_}, std::move(start_));
  }
  Interval(const Interval&) = delete;
  Interval& operator=(const Interval&) = delete;

 private:
  LaneTimer& timer_;
  Lane lane_;
  std::string_view name_;
  std::int64_t weights_;
  LaneTimer::Moment start_;
};

}  // namespace stormo::train
