#include <stormo/protocol/elastic/loss_history.h>

#include <algorithm>

namespace stormo::protocol {

void LossHistory::note(std::string_view identity, TimePoint now) {
  std::erase_if(losses_, [&](const Loss& loss) { return now - loss.at > limits_.window; });
  losses_.push_back({.identity = std::string(identity), .at = now});
}

TimePoint LossHistory::returns_at(std::string_view identity, TimePoint now) const {
  int count = 0;
  TimePoint last = TimePoint::min();
  for (const Loss& loss : losses_) {
    if (loss.identity != identity || now - loss.at > limits_.window) continue;
    ++count;
    last = loss.at;
  }
  if (count <= limits_.free_losses) return last;
  Duration wait = limits_.shortest;
  for (int i = limits_.free_losses + 1; i < count && wait < limits_.longest; ++i) wait *= 2;
  return last + std::min(wait, limits_.longest);
}

}  // namespace stormo::protocol
