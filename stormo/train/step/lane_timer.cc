#include <stormo/train/step/lane_timer.h>

#include <algorithm>
#include <iterator>

namespace stormo::train {

void LaneTimer::record(const Event& event) {
  note(event);
  if (next_ == nullptr) return;
  Event named = event;
  named.rank = rank_;
  if (named.step < 0) named.step = step_;
  next_->record(named);
}

// Events come about in the order of their ends, so that few spans have to move.
void LaneTimer::note(const Event& event) {
  const std::lock_guard lock(mutex_);
  Span span{std::max(event.start, since_), event.end};
  if (span.start >= span.end) return;
  std::vector<Span>& spans = busy_[static_cast<std::size_t>(event.lane)];
  auto last = spans.end();
  while (last != spans.begin() && std::prev(last)->start > span.end) --last;
  auto first = last;
  while (first != spans.begin() && std::prev(first)->end >= span.start) {
    --first;
    span = {std::min(span.start, first->start), std::max(span.end, first->end)};
  }
  spans.insert(spans.erase(first, last), span);
}

std::array<double, kNumLanes> LaneTimer::take() {
  const std::lock_guard lock(mutex_);
  std::array<double, kNumLanes> seconds{};
  for (std::size_t i = 0; i < seconds.size(); ++i) {
    for (const Span& span : busy_[i]) {
      seconds[i] += std::chrono::duration<double>(span.end - span.start).count();
    }
    busy_[i].clear();
  }
  since_ = std::chrono::steady_clock::now();
  return seconds;
}

}  // namespace stormo::train
