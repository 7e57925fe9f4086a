#include <stormo/comm/activity.h>

#include <algorithm>

namespace stormo::comm {

std::shared_ptr<Activity> Activities::add(std::string group) {
  auto activity = std::make_shared<Activity>();
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& e) { return e.activity.expired(); });
  entries_.push_back({std::move(group), activity});
  return activity;
}

void Activities::set_section(std::string_view text) {
  const std::lock_guard lock(mutex_);
  section_ = text;
}

std::vector<Activities::Call> Activities::running() const {
  const std::lock_guard lock(mutex_);
  std::vector<Call> calls;
  for (const Entry& entry : entries_) {
    const auto activity = entry.activity.lock();
    if (activity == nullptr) continue;
    const auto [operation, is_running] = activity->snapshot();
    if (is_running) calls.push_back({entry.group, operation});
  }
  return calls;
}

std::string Activities::text() const {
  const std::lock_guard lock(mutex_);
  std::string running;
  Operation last;
  for (const Entry& entry : entries_) {
    const auto activity = entry.activity.lock();
    if (activity == nullptr) continue;
    const auto [operation, is_running] = activity->snapshot();
    if (entry.group.empty()) last = operation;
    if (!is_running) continue;
    running += (running.empty() ? "" : "; ") + to_text(operation);
    if (!entry.group.empty()) running += " in " + entry.group;
  }
  if (running.empty()) {
    running = last.sequence == 0 ? "no operation yet" : "computing after " + to_text(last);
  }
  return section_.empty() ? running : section_ + ", " + running;
}

}  // namespace stormo::comm
