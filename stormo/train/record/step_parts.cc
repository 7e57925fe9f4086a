#include <stormo/train/record/step_parts.h>

#include <chrono>
#include <cstddef>
#include <utility>

namespace stormo::train {

void StepParts::record(const Event& event) {
  if (next_ != nullptr) next_->record(event);
  if (std::this_thread::get_id() != thread_) return;
  protocol::StepPart part = protocol::StepPart::kCompute;
  switch (event.lane) {
    case Lane::kWait:
    case Lane::kCommunication:
      std::erase_if(collectives_, [&](const Span& s) { return s.start >= event.start; });
      collectives_.push_back({event.start, event.end});
      return;
    case Lane::kData: part = protocol::StepPart::kData; break;
    case Lane::kCompute:
      if (event.name == "update") part = protocol::StepPart::kOptimizer;
      break;
  }
  const Duration own = event.end - event.start - collectives_since(event.start);
  if (event.name == "evaluate") return;
  seconds_[static_cast<std::size_t>(part)] += std::chrono::duration<double>(own).count();
}

/// Forgets them all: those before belong to nothing.
Duration StepParts::collectives_since(TimePoint start) {
  Duration sum{};
  for (const Span& s : collectives_) {
    if (s.start >= start) sum += s.end - s.start;
  }
  collectives_.clear();
  return sum;
}

protocol::PartSeconds StepParts::take() { return std::exchange(seconds_, {}); }

}  // namespace stormo::train
