#include <stormo/comm/watch/activity.h>

#include <algorithm>
#include <bit>
#include <cctype>

namespace stormo::comm {
namespace {

/// A program that names no steps has begun to work after so many collectives.
constexpr std::uint64_t kStartOperations = 16;

/// "step 12" of "step 12 forward"; empty when it is no step.
std::string_view step_of(std::string_view section) {
  constexpr std::string_view kStep = "step ";
  if (!section.starts_with(kStep)) return {};
  std::size_t end = kStep.size();
  while (end < section.size() && std::isdigit(static_cast<unsigned char>(section[end])) != 0) ++end;
  return end == kStep.size() ? std::string_view() : section.substr(0, end);
}

}  // namespace

Activity::Record Activity::read(const Slot& slot) {
  OperationWords words{};
  for (std::size_t i = 0; i < words.size(); ++i) words[i] = slot.words[i].load(kAcquire);
  return {std::bit_cast<Operation>(words), slot.place.load(kAcquire), slot.began.load(kAcquire),
          slot.ended.load(kAcquire)};
}

Activity::Record Activity::last() const {
  for (;;) {
    const std::uint64_t before = version_.load(kAcquire);
    if (before == 0) return {.operation = {}, .ended = 1};
    if (before % 2 != 0) continue;
    const Record record = read(slots_[(before / 2 - 1) % kKept]);
    if (version_.load(std::memory_order_relaxed) == before) return record;
  }
}

std::vector<Activity::Record> Activity::records() const {
  std::vector<Record> kept;
  const std::uint64_t end = version_.load(kAcquire) / 2;
  const std::uint64_t begin = end > kKept ? end - kKept : 0;
  for (std::uint64_t i = begin; i < end; ++i) kept.push_back(read(slots_[i % kKept]));
  // what was begun meanwhile has replaced the oldest ones
  const std::uint64_t begun = (version_.load(kAcquire) + 1) / 2;
  const std::uint64_t replaced = std::min<std::uint64_t>(
      kept.size(), begun > kKept && begun - kKept > begin ? begun - kKept - begin : 0);
  kept.erase(kept.begin(), kept.begin() + static_cast<std::ptrdiff_t>(replaced));
  return kept;
}

std::shared_ptr<Activity> Activities::add(std::string group, Rank rank, int size) {
  auto activity = std::make_shared<Activity>();
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_, [](const Entry& e) { return e.activity.expired(); });
  entries_.push_back({std::move(group), rank, size, activity});
  return activity;
}

void Activities::set_section(std::string_view text) {
  const std::lock_guard lock(mutex_);
  section_ = text;
  ++num_sections_;
  changed_at_ = awake_;
  const std::string_view step = step_of(text);
  names_steps_ |= !step.empty() || text == "start";
  if (step == step_) return;
  if (!step_.empty()) {
    // the first one loads and compiles
    if (steps_ended_ > 0) slowest_step_ = std::max(slowest_step_, awake_ - step_began_);
    ++steps_ended_;
  }
  step_ = step;
  step_began_ = awake_;
}

std::string Activities::section() const {
  const std::lock_guard lock(mutex_);
  return section_;
}

void Activities::remove(const Activity& activity) {
  const std::lock_guard lock(mutex_);
  std::erase_if(entries_,
                [&](const Entry& entry) { return entry.activity.lock().get() == &activity; });
}

std::vector<Activities::Group> Activities::groups() const {
  const std::lock_guard lock(mutex_);
  std::vector<Group> groups;
  for (const Entry& entry : entries_) {
    auto activity = entry.activity.lock();
    if (activity == nullptr) continue;
    groups.push_back({entry.group, entry.rank, entry.size, std::move(activity)});
  }
  return groups;
}

std::vector<Activities::Call> Activities::running() const {
  std::vector<Call> calls;
  for (const Group& group : groups()) {
    const Activity::Record last = group.activity->last();
    if (last.running()) calls.push_back({group.name, group.size, last.operation, last.began});
  }
  return calls;
}

std::string Activities::text() const {
  std::string running;
  Operation last_of_world;
  for (const Group& group : groups()) {
    const Activity::Record last = group.activity->last();
    if (group.name.empty()) last_of_world = last.operation;
    if (!last.running()) continue;
    running += (running.empty() ? "" : "; ") + to_text(last.operation);
    if (!group.name.empty()) running += " in " + group.name;
  }
  if (running.empty()) {
    running = last_of_world.sequence == 0 ? "no operation yet"
                                          : "computing after " + to_text(last_of_world);
  }
  const std::string where = section();
  return where.empty() ? running : where + ", " + running;
}

std::uint64_t Activities::changes() const {
  const std::lock_guard lock(mutex_);
  return changes_locked();
}

std::uint64_t Activities::changes_locked() const {
  std::uint64_t sum = num_sections_;
  for (const Entry& entry : entries_) {
    const auto activity = entry.activity.lock();
    if (activity == nullptr) continue;
    const Activity::Record last = activity->last();
    sum += last.began + 3 * last.ended + activity->progress();
  }
  return sum;
}

void Activities::tick(TimePoint now, std::uint64_t progress) {
  const std::lock_guard lock(mutex_);
  if (last_tick_ != TimePoint::min()) awake_ += std::min<Duration>(now - last_tick_, kMaxGap);
  last_tick_ = now;
  const std::uint64_t changes_now = changes_locked() + progress;
  if (changes_now != seen_changes_) changed_at_ = awake_;
  seen_changes_ = changes_now;
}

Pace Activities::pace() const {
  const std::lock_guard lock(mutex_);
  bool started = steps_ended_ > 0;
  if (!names_steps_) {
    for (const Entry& entry : entries_) {
      const auto activity = entry.activity.lock();
      started |= activity != nullptr && activity->last().place > kStartOperations;
    }
  }
  return {started, slowest_step_, awake_ - changed_at_};
}

Duration Activities::awake() const {
  const std::lock_guard lock(mutex_);
  return awake_;
}

}  // namespace stormo::comm
