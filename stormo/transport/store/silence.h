#pragma once

#include <algorithm>
#include <chrono>

#include <stormo/base/clock.h>

namespace stormo::transport {

/// For one end of a session: for how long it has heard nothing from the other end, and whether that
/// is too long. Without a clock.
class Silence {
 public:
  /// A longer pause of this end itself does not count as silence of the other.
  static constexpr Duration kMaxOwnPause = std::chrono::milliseconds(500);
  /// Whoever is silent although its process runs is looked at again after this time.
  static constexpr Duration kLookAgain = std::chrono::milliseconds(250);

  explicit Silence(TimePoint now) : heard_at_(now) {}

  void hear(TimePoint now) { heard_at_ = now; }
  /// What was heard came so much too late. The next may too: the limit is as much longer, at most
  /// twice as long. This fades.
  void note_late(Duration by) { late_ = std::max({Duration::zero(), by, late_ / 2}); }
  /// This end has not looked for this time.
  void note_own_pause(Duration pause, TimePoint now) {
    if (pause > kMaxOwnPause) heard_at_ = std::min(now, heard_at_ + pause);
  }

  Duration so_far(TimePoint now) const { return now - heard_at_; }
  /// `runs`: whether the process of the other end runs, as far as that can be known here. Then it
  /// is only late.
  template <class Runs>
  bool is_too_long(TimePoint now, Duration limit, const Runs& runs) {
    if (so_far(now) <= allowed(limit) || now <= excused_until_) return false;
    if (!runs()) return true;
    excused_until_ = now + kLookAgain;
    return false;
  }
  /// When it is to be looked at, if nothing is heard; TimePoint::max(): never.
  TimePoint look_at(Duration limit) const {
    if (limit >= (TimePoint::max() - heard_at_) / 2) return TimePoint::max();
    return std::max(heard_at_ + allowed(limit), excused_until_) + Duration(1);
  }

 private:
  Duration allowed(Duration limit) const { return limit + std::min(late_, limit); }

  TimePoint heard_at_;
  TimePoint excused_until_{};
  Duration late_{};
};

}  // namespace stormo::transport
