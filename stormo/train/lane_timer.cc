#include <stormo/train/lane_timer.h>

namespace stormo::train {

void LaneTimer::record(const Event& event) {
  nanoseconds_[static_cast<std::size_t>(event.lane)] += (event.end - event.start).count();
  if (next_ == nullptr) return;
  Event named = event;
  named.rank = rank_;
  if (named.step < 0) named.step = step_;
  next_->record(named);
}

std::array<double, kNumLanes> LaneTimer::take() {
  std::array<double, kNumLanes> seconds{};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    seconds[i] = static_cast<double>(nanoseconds_[i].exchange(0)) * 1e-9;
  }
  return seconds;
}

}  // namespace stormo::train
