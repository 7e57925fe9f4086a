#include <gtest/gtest.h>
#include <stormo/comm/watch/activity.h>

#include <atomic>
#include <thread>

namespace stormo::comm {
namespace {

using namespace std::chrono_literals;

Operation operation(std::uint64_t sequence) {
  return {.sequence = sequence, .count = sequence, .layout = sequence};
}

TEST(Activity, KeepsTheLastOperations) {
  Activity activity;
  EXPECT_FALSE(activity.last().running());
  EXPECT_TRUE(activity.records().empty());
  for (std::uint64_t i = 1; i <= 100; ++i) {
    activity.begin(operation(i));
    EXPECT_TRUE(activity.last().running());
    if (i < 100) activity.end();
  }
  const auto records = activity.records();
  ASSERT_EQ(records.size(), Activity::kKept);
  for (std::size_t i = 0; i < records.size(); ++i) {
    EXPECT_EQ(records[i].operation, operation(100 - Activity::kKept + 1 + i));
    EXPECT_EQ(records[i].place, records[i].operation.sequence);
    EXPECT_EQ(records[i].running(), i + 1 == records.size());
  }
}

TEST(Activity, AnOperationMayEndAtOnce) {
  Activity activity;
  const std::uint64_t before = ticks();
  activity.begin(operation(1));
  activity.end_at_once();
  EXPECT_FALSE(activity.last().running());
  EXPECT_EQ(activity.last().ended, activity.last().began);
  EXPECT_GE(activity.last().began, before);
  activity.begin(operation(2));
  EXPECT_TRUE(activity.last().running());
}

TEST(Activity, MessagesTakeNoPlaceAmongTheCollectives) {
  Activity activity;
  activity.begin(operation(1));
  activity.begin({.tag = 7, .kind = OperationKind::kSend});
  EXPECT_EQ(activity.last().place, 1u);
}

TEST(Activity, ReadersSeeWholeOperationsOnly) {
  Activity activity;
  std::atomic<bool> done{false};
  std::thread writer([&] {
    for (std::uint64_t i = 1; i <= 50000; ++i) {
      activity.begin(operation(i));
      activity.end();
    }
    done = true;
  });
  while (!done) {
    for (const Activity::Record& r : activity.records()) {
      EXPECT_EQ(r.operation, operation(r.operation.sequence));
    }
    const Activity::Record last = activity.last();
    EXPECT_EQ(last.operation, operation(last.operation.sequence));
  }
  writer.join();
}

class Time {
 public:
  explicit Time(Activities& activities) : activities_(activities) { pass(0s); }
  void pass(Duration d) {
    now_ += d;
    activities_.tick(now_, moved_);
  }
  void pass_in_steps(Duration d) {
    for (Duration left = d; left > 0s; left -= 500ms) pass(500ms);
  }
  void move(std::uint64_t bytes) { moved_ += bytes; }

 private:
  Activities& activities_;
  TimePoint now_{};
  std::uint64_t moved_ = 0;
};

TEST(Activities, TellsAnOperationFromAnEqualOneBeforeIt) {
  Activities activities;
  const auto messages = activities.add("messages", 0, 3);
  const Operation receive{.root = kAnyRank, .tag = 7, .kind = OperationKind::kReceive};
  messages->begin(receive);
  const auto first = activities.running();
  ASSERT_EQ(first.size(), 1u);
  EXPECT_EQ(first[0].size, 3);
  EXPECT_EQ(activities.running(), first);
  messages->end();
  messages->begin(receive);
  EXPECT_NE(activities.running(), first);
  EXPECT_EQ(activities.text(), "recv from any (0 uint8, tag 7) in messages");
}

TEST(Pace, TheFirstStepIsNoMeasure) {
  Activities activities;
  Time time(activities);
  activities.set_section("start");
  time.pass_in_steps(30s);
  activities.set_section("step 1");
  activities.set_section("step 1 forward");
  time.pass_in_steps(20s);
  EXPECT_FALSE(activities.pace().started);
  activities.set_section("step 2");
  EXPECT_TRUE(activities.pace().started);
  EXPECT_EQ(activities.pace().slowest_step, 0s);
  time.pass_in_steps(3s);
  activities.set_section("step 3");
  time.pass_in_steps(2s);
  activities.set_section("finish");
  EXPECT_EQ(activities.pace().slowest_step, 3s);
}

TEST(Pace, AProgramThatNamesNoStepsHasStartedAfterSomeCollectives) {
  Activities activities;
  const auto world = activities.add("", 0);
  for (std::uint64_t i = 1; i <= 16; ++i) world->begin(operation(i));
  EXPECT_FALSE(activities.pace().started);
  world->begin(operation(17));
  EXPECT_TRUE(activities.pace().started);
}

TEST(Pace, WhoBeginsEndsNamesOrMovesIsNotIdle) {
  Activities activities;
  const auto world = activities.add("", 0);
  Time time(activities);
  const auto idle_for = [&](auto&& action) {
    time.pass_in_steps(4s);
    EXPECT_GE(activities.pace().idle, 3500ms);
    action();
    time.pass(1ms);
    EXPECT_LE(activities.pace().idle, 1ms);
  };
  idle_for([&] { world->begin(operation(1)); });
  idle_for([&] { world->end(); });
  idle_for([&] { activities.set_section("evaluate, batch 3"); });
  idle_for([&] { time.move(1); });
  // beside an operation that waits, here for long, and does not change
  world->begin(operation(2));
  idle_for([&] { world->note_progress(); });
}

TEST(Pace, TimeInWhichTheProcessWasStoppedDoesNotCount) {
  Activities activities;
  Time time(activities);
  time.pass(1h);
  EXPECT_EQ(activities.pace().idle, Activities::kMaxGap);
}

}  // namespace
}  // namespace stormo::comm
