#include <stormo/train/elastic/next_group.h>

#include <utility>

namespace stormo::train {
namespace {

bool is_same(const protocol::ElasticRecord& a, const protocol::ElasticRecord& b) {
  return a.epoch == b.epoch && a.group == b.group;
}

}  // namespace

NextGroup::NextGroup(Calls calls) : calls_(std::move(calls)), thread_([this] { run(); }) {}

void NextGroup::end() {
  if (!thread_.joinable()) return;
  {
    std::unique_lock lock(mutex_);
    stop_ = true;
    give_up(lock);
  }
  changed_.notify_one();
  thread_.join();
}

void NextGroup::prepare(const protocol::ElasticRecord& wish) {
  {
    const std::lock_guard lock(mutex_);
    if (made_) discarded_.push_back(std::move(made_));
    wanted_ = wish;
  }
  changed_.notify_one();
}

NextGroup::Group NextGroup::take(const protocol::ElasticRecord& record) {
  Group group;
  {
    std::unique_lock lock(mutex_);
    if (record.group != 0 && is_same(wanted_, record)) group = std::move(made_);
    if (wanted_.epoch <= record.epoch) give_up(lock);
  }
  changed_.notify_one();
  return group;
}

void NextGroup::discard(Group group) {
  {
    const std::lock_guard lock(mutex_);
    discarded_.push_back(std::move(group));
  }
  changed_.notify_one();
}

// With the lock, which it lets go: others of that group hear of it.
void NextGroup::give_up(std::unique_lock<std::mutex>& lock) {
  wanted_ = {};
  if (made_) discarded_.push_back(std::move(made_));
  if (making_.epoch == 0) return;
  const protocol::ElasticRecord making = making_;
  lock.unlock();
  calls_.abort(making);
  lock.lock();
}

void NextGroup::run() {
  std::unique_lock lock(mutex_);
  const auto has_wish = [this] { return wanted_.epoch != 0 && !made_; };
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !discarded_.empty() || has_wish(); });
    if (stop_) return;
    if (has_wish()) make(lock);
    std::vector<Group> discarded = std::exchange(discarded_, {});
    lock.unlock();
    discarded.clear();
    lock.lock();
  }
}

// With the lock, which it lets go.
void NextGroup::make(std::unique_lock<std::mutex>& lock) {
  making_ = wanted_;
  lock.unlock();
  Result<Group> group = calls_.join(making_);
  lock.lock();
  const protocol::ElasticRecord made = std::exchange(making_, {});
  if (!is_same(made, wanted_)) {
    if (group.ok()) discarded_.push_back(std::move(*group));
    return;
  }
  if (!group.ok()) {
    wanted_ = {};
    return;
  }
  made_ = std::move(*group);
  lock.unlock();
  calls_.ready(made);
  lock.lock();
}

}  // namespace stormo::train
