// The group of the next epoch of an elastic job is made by a thread while the present one is in
// use.
#include <gtest/gtest.h>

#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <vector>

#include <stormo/train/elastic/next_group.h>
#include <stormo/transport/store/rendezvous.h>

namespace stormo::train {
namespace {

protocol::ElasticRecord record(Epoch epoch, std::uint32_t group) {
  return {.epoch = epoch, .group = group};
}

/// Others make a group only when they are let.
class NextGroupTest : public testing::Test {
 protected:
  NextGroup make() {
    return NextGroup({.join = [this](const protocol::ElasticRecord& wish) { return join(wish); },
                      .abort = [this](const protocol::ElasticRecord& wish) { let(wish.group); },
                      .ready =
                          [this](const protocol::ElasticRecord& wish) {
                            const std::lock_guard lock(mutex_);
                            ready_.push_back(wish.group);
                            changed_.notify_all();
                          }});
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
  Result<NextGroup::Group> join(const protocol::ElasticRecord& wish) {
    std::unique_lock lock(mutex_);
    joining_ = wish.group;
    changed_.notify_all();
    changed_.wait(lock, [&] { return let_ >= wish.group; });
    return comm::join(transport::Rendezvous{});
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::uint32_t joining_ = 0, let_ = 0;
};

TEST_F(NextGroupTest, IsThereWhenItsEpochBegins) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  EXPECT_EQ(next.take(record(1, 0)), nullptr) << "it is not of that epoch";
  let(1);
  wait_until_ready(1);
  EXPECT_NE(next.take(record(2, 1)), nullptr);
  EXPECT_EQ(next.take(record(2, 1)), nullptr) << "it is taken";
}

TEST_F(NextGroupTest, AnEpochWithoutItGivesItUp) {
  NextGroup next = make();
  let(1);
  next.prepare(record(2, 1));
  wait_until_ready(1);
  EXPECT_EQ(next.take(record(2, 0)), nullptr);
  EXPECT_EQ(next.take(record(2, 1)), nullptr);
}

TEST_F(NextGroupTest, TheNewestWishCounts) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  wait_until_joining(1);
  next.prepare(record(2, 2));
  let(2);
  wait_until_ready(2);
  EXPECT_EQ(ready_, std::vector<std::uint32_t>{2});
  EXPECT_NE(next.take(record(2, 2)), nullptr);
}

TEST_F(NextGroupTest, ItsEndAbortsWhatIsBeingMade) {
  NextGroup next = make();
  next.prepare(record(2, 1));
  wait_until_joining(1);
}

}  // namespace
}  // namespace stormo::train
