#pragma once

#include <thread>
#include <vector>

#include <stormo/base/clock.h>
#include <stormo/base/event.h>
#include <stormo/protocol/slow_ranks.h>

namespace stormo::train {

/// Adds up what the thread that made it does in training steps, and passes every Event on.
/// Collectives inside of a computation or of a load are waits, or bound by them, and do not count.
class StepParts final : public Sink {
 public:
  /// Receives all Events; null: none. Not owned.
  explicit StepParts(Sink* next) : next_(next) {}

  void record(const Event& event) override;
  /// Since the last call; all but the link. By the thread that made it.
  protocol::PartSeconds take();

 private:
  struct Span {
    TimePoint start, end;
  };
  Duration collectives_since(TimePoint start);

  Sink* const next_;
  const std::thread::id thread_ = std::this_thread::get_id();
  std::vector<Span> collectives_;  // that no computation has ended after; they do not overlap
  protocol::PartSeconds seconds_{};
};

}  // namespace stormo::train
