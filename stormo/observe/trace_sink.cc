#include <stormo/observe/trace_sink.h>

#include <algorithm>

namespace stormo::observe {
namespace {

/// Names are code locations, so few; a caller that invents one per event must not eat all memory.
constexpr std::size_t kMaxNames = 4096;

std::int64_t nanoseconds(TimePoint t) { return t.time_since_epoch().count(); }

}  // namespace

TraceSink::TraceSink(Rank rank, std::string host, std::size_t capacity)
    : capacity_(std::max<std::size_t>(1, capacity)) {
  trace_.rank = rank;
  trace_.host = std::move(host);
}

std::uint32_t TraceSink::intern(std::string_view name) {
  const auto found = name_index_.find(name);
  if (found != name_index_.end()) return found->second;
  if (trace_.names.size() == kMaxNames) return intern(trace_.names.back());
  const auto index = static_cast<std::uint32_t>(trace_.names.size());
  const bool last = trace_.names.size() + 1 == kMaxNames;
  trace_.names.emplace_back(last ? std::string_view("other") : name);
  name_index_.emplace(trace_.names.back(), index);
  return index;
}

void TraceSink::record(const Event& event) {
  const std::lock_guard lock(mutex_);
  const TraceEvent stored{
      .lane = event.lane,
      .name = intern(event.name),
      .step = event.step,
      .bytes = event.bytes,
      .weights = event.weights,
      .staleness = event.staleness,
      .start_ns = nanoseconds(event.start),
      .duration_ns = std::max<std::int64_t>(0, nanoseconds(event.end) - nanoseconds(event.start))};
  if (trace_.events.size() < capacity_) {
    trace_.events.push_back(stored);
    return;
  }
  trace_.events[next_] = stored;
  next_ = (next_ + 1) % capacity_;
  ++trace_.dropped;
}

void TraceSink::begin_at(const ClockReading& reading) {
  const std::lock_guard lock(mutex_);
  trace_.begin = trace_.end = reading;
}

void TraceSink::end_at(const ClockReading& reading) {
  const std::lock_guard lock(mutex_);
  trace_.end = reading;
}

RankTrace TraceSink::snapshot() const {
  const std::lock_guard lock(mutex_);
  RankTrace copy = trace_;
  std::rotate(copy.events.begin(), copy.events.begin() + static_cast<std::ptrdiff_t>(next_),
              copy.events.end());
  return copy;
}

}  // namespace stormo::observe
