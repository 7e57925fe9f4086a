// The group of the next epoch of an elastic job is made by a thread while the present one is in
// use.
#include <gtest/gtest.h>

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <utility>
#include <vector>

#include <stormo/train/elastic/next_group.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::train {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(1);

protocol::ElasticRecord record(Epoch epoch, std::uint32_t group) {
  return {.epoch = epoch, .group = group};
}

bool takes(NextGroup& next, const protocol::ElasticRecord& of) {
  return next.take(of).group != nullptr;
}

/// Others make a group only when they are let.
class NextGroupTest : public testing::Test {
 protected:
  using Health = std::shared_ptr<transport::Health>;
  NextGroup make() {
    return NextGroup({.join = [this](const protocol::ElasticRecord& wish,
                                     Health health) { return join(wish, std::move(health)); },
                      .ready =
                          [this](const protocol::ElasticRecord& wish) {
                            const std::lock_guard lock(mutex_);
                            ready_.push_back(wish.group);
                            changed_.notify_all();
                          },
                      .destroy = [](NextGroup::Group) {}});
  }
  void let(std::uint32_t group) {
    const std::lock_guard lock(mutex_);
    let_ = group;
    changed_.notify_all();
  }
  void wait_until_ready(std::uint32_t group) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !ready_.empty() && ready_.back() == group; });
  }
  void wait_until_joining(std::uint32_t group) {
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return joining_ == group; });
  }
  std::vector<std::uint32_t> ready_;

 private:
  Result<NextGroup::Group> join(const protocol::ElasticRecord& wish, Health health) {
    std::unique_lock lock(mutex_);
    joining_ = wish.group;
    changed_.notify_all();
    // nobody can wait for a failure itself
    while (let_ < wish.group && !health->failed()) changed_.wait_for(lock, kLook);
    if (health->failed()) return health->status();
    return comm::join_epoch(transport::Rendezvous{}, {}, std::move(health));
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t joining_ = 0, let_ = 0;
};

TEST_F(NextGroupTest, IsThereWhenItsEpochBegins) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  EXPECT_FALSE(takes(next, record(1, 0))) << "it is not of that epoch";
  let(1);
  wait_until_ready(1);
  EXPECT_TRUE(takes(next, record(2, 1)));
  EXPECT_FALSE(takes(next, record(2, 1))) << "it is taken";
}

TEST_F(NextGroupTest, AnEpochWithoutItGivesItUp) {
  NextGroup next = make();
  let(1);
  next.prepare(record(2, 1));
  wait_until_ready(1);
  EXPECT_FALSE(takes(next, record(2, 0)));
  EXPECT_FALSE(takes(next, record(2, 1)));
}

TEST_F(NextGroupTest, TheNewestWishCounts) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  wait_until_joining(1);
  next.prepare(record(2, 2));
  let(2);
  wait_until_ready(2);
  EXPECT_EQ(ready_, std::vector<std::uint32_t>{2});
  EXPECT_TRUE(takes(next, record(2, 2)));
}

TEST_F(NextGroupTest, ItsEpochMayBeOverBeforeItIsThere) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  wait_until_joining(1);
  next.give_up(1);  // is of the epoch before
  next.give_up(2);
  next.prepare(record(3, 2));
  let(2);
  wait_until_ready(2);
  EXPECT_EQ(ready_, std::vector<std::uint32_t>{2});
}

TEST_F(NextGroupTest, AGroupThatIsReadyFailsWithItsHealth) {
  NextGroup next = make();
  let(1);
  next.prepare(record(2, 1));
  wait_until_ready(1);
  const NextGroup::Group group = next.take(record(2, 1));
  group.health->fail(Status(Code::kCancelled, "over"));
  EXPECT_EQ(group.group->status().code(), Code::kCancelled);
}

TEST_F(NextGroupTest, ItsEndAbortsWhatIsBeingMade) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  wait_until_joining(1);
}

}  // namespace
}  // namespace stormo::train
