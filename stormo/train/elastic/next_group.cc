#include <stormo/train/elastic/next_group.h>

#include <utility>

namespace stormo::train {

NextGroup::NextGroup(Calls calls) : calls_(std::move(calls)), thread_([this] { run(); }) {}

void NextGroup::end() {
  if (!thread_.joinable()) return;
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
    drop();
  }
  changed_.notify_one();
  thread_.join();
}

void NextGroup::prepare(const protocol::ElasticRecord& wish) {
  {
    const std::lock_guard lock(mutex_);
    drop();
    wanted_ = wish;
  }
  changed_.notify_one();
}

NextGroup::Group NextGroup::take(const protocol::ElasticRecord& record) {
  Group group;
  {
    const std::lock_guard lock(mutex_);
    const bool is_wanted = wanted_.epoch == record.epoch && wanted_.group == record.group;
    if (record.group != 0 && is_wanted) group = std::exchange(made_, {});
  }
  give_up(record.epoch);
  return group;
}

void NextGroup::give_up(Epoch epoch) {
  {
    const std::lock_guard lock(mutex_);
    if (wanted_.epoch <= epoch) drop();
  }
  changed_.notify_one();
}

void NextGroup::discard(Group group) {
  if (!group.group) return;
  {
    const std::lock_guard lock(mutex_);
    discarded_.push_back(std::move(group));
  }
  changed_.notify_one();
}

// With the lock. Others of that group see the end of this member's part in it.
void NextGroup::drop() {
  wanted_ = {};
  if (making_) making_->fail(Status(Code::kCancelled, "the group is not needed"));
  if (made_.group) discarded_.push_back(std::exchange(made_, {}));
}

void NextGroup::run() {
  std::unique_lock lock(mutex_);
  const auto has_wish = [this] { return wanted_.epoch != 0 && !made_.group; };
  for (;;) {
    changed_.wait(lock, [&] { return stop_ || !discarded_.empty() || has_wish(); });
    if (stop_) return;
    if (has_wish()) make(lock);
    std::vector<Group> discarded = std::exchange(discarded_, {});
    lock.unlock();
    for (Group& group : discarded) calls_.destroy(std::move(group));
    lock.lock();
  }
}

// With the lock, which it lets go.
void NextGroup::make(std::unique_lock<std::mutex>& lock) {
  const protocol::ElasticRecord wish = wanted_;
  making_ = std::make_shared<transport::Health>();
  const std::shared_ptr<transport::Health> health = making_;
  lock.unlock();
  Result<Group> group = calls_.join(wish, health);
  lock.lock();
  making_.reset();
  const bool is_wanted = wanted_.epoch == wish.epoch && wanted_.group == wish.group;
  if (!is_wanted) {
    if (group.ok()) discarded_.push_back(*std::move(group));
    return;
  }
  if (!group.ok()) {
    wanted_ = {};
    return;
  }
  made_ = *std::move(group);
  lock.unlock();
  calls_.ready(wish);
  lock.lock();
}

}  // namespace stormo::train
