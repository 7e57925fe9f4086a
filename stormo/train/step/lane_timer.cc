#include <stormo/train/step/lane_timer.h>

#include <algorithm>
#include <iterator>
#include <utility>

#include <c10/core/impl/VirtualGuardImpl.h>

namespace stormo::train {

namespace {

c10::Event mark(c10::Device device) {
  c10::Event event(device.type(), c10::EventFlag::BACKEND_DEFAULT);
  event.record(c10::impl::VirtualGuardImpl(device.type()).getStream(device));
  return event;
}

}  // namespace

void LaneTimer::use_clock_of(c10::Device device) {
  device_.reset();
  if (device.is_cpu()) return;
  device_ = device;
  set_zero();
}

/// Anew from time to time: a device counts from here in few digits, and its clock drifts.
void LaneTimer::set_zero() {
  zero_.device = mark(*device_);
  zero_.device->synchronize();
  zero_.host = std::chrono::steady_clock::now();
}

LaneTimer::Moment LaneTimer::now(Lane lane) {
  if (device_ && lane == Lane::kCompute) return {.host = {}, .device = mark(*device_)};
  return {.host = std::chrono::steady_clock::now(), .device = {}};
}

void LaneTimer::record(Event event, Moment start) {
  if (!start.device) {
    event.start = start.host;
    event.end = std::chrono::steady_clock::now();
    return record(event);
  }
  event.step = step_;
  try {
    on_device_.push_back({event, std::move(*start.device), mark(*device_)});
    record_done(/*wait=*/false);
  } catch (const c10::Error&) {  // the device has failed: who waits for it next tells why
    on_device_.clear();
  }
}

/// Of the Events of the device, those that are over.
void LaneTimer::record_done(bool wait) {
  const auto time_of = [this](const c10::Event& event) {
    const std::chrono::duration<double, std::milli> since(zero_.device->elapsedTime(event));
    return zero_.host + std::chrono::duration_cast<TimePoint::duration>(since);
  };
  for (; !on_device_.empty(); on_device_.pop_front()) {
    OnDevice& first = on_device_.front();
    if (wait) first.end.synchronize();
    if (!first.end.query()) return;
    first.event.start = time_of(first.start);
    first.event.end = time_of(first.end);
    record(first.event);
  }
}

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
  record_done(/*wait=*/true);
  if (device_) set_zero();
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
