#include <stormo/protocol/worker_stalls.h>

#include <chrono>
#include <vector>

#include <gtest/gtest.h>

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using Stalls = std::vector<WorkerStalls::Stall>;

constexpr StallLimits kLimits{.warning = seconds(2), .timeout = seconds(6)};

WorkerPace works(std::uint64_t progress) {
  return {.progress = progress, .steps = 1, .doing = "step 2"};
}
WorkerPace waits(std::uint64_t progress) {
  return {.progress = progress, .steps = 1, .waits = true, .doing = "step 3"};
}

/// What is to be said when these workers still wait, and look after what they wait for.
Stalls look(WorkerStalls& stalls, const std::vector<int>& waiting, Duration now) {
  for (const int w : waiting) stalls.note(w, waits(static_cast<std::uint64_t>(now.count())), now);
  return stalls.look(now);
}

TEST(WorkerStalls, WhoDoesNotGetOnIsNamedOnceAndThenHasToGo) {
  WorkerStalls stalls(kLimits);
  stalls.note(0, waits(5), seconds(10));
  stalls.note(1, works(4), seconds(10));
  stalls.note(2, waits(5), seconds(10));
  EXPECT_EQ(look(stalls, {0, 2}, seconds(11)), Stalls());
  const Stalls warned = look(stalls, {0, 2}, seconds(12));
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].worker, 1);
  EXPECT_FALSE(warned[0].ends);
  EXPECT_EQ(warned[0].text, "has made no progress for 2.0 s; workers 0, 2 wait; its last: step 2");
  EXPECT_EQ(look(stalls, {0, 2}, milliseconds(15'900)), Stalls()) << "once";
  const Stalls ended = look(stalls, {0, 2}, seconds(16));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].ends);
  EXPECT_EQ(ended[0].progress, 4u);
  stalls.forget(1);
  EXPECT_EQ(look(stalls, {0, 2}, seconds(100)), Stalls()) << "all others wait, for servers";
}

TEST(WorkerStalls, WhoHangsInAWaitOfItsOwnHasToGoToo) {
  WorkerStalls stalls(kLimits);
  for (const int w : {0, 1, 2}) stalls.note(w, waits(5), seconds(10));
  EXPECT_EQ(look(stalls, {0, 2}, milliseconds(11'900)), Stalls());
  const Stalls warned = look(stalls, {0, 2}, seconds(12));
  ASSERT_EQ(warned.size(), 1u);
  EXPECT_EQ(warned[0].worker, 1);
  EXPECT_EQ(warned[0].text, "has made no progress for 2.0 s; workers 0, 2 wait; its last: step 3");
  const Stalls ended = look(stalls, {0, 2}, seconds(16));
  ASSERT_EQ(ended.size(), 1u);
  EXPECT_TRUE(ended[0].ends);
}

TEST(WorkerStalls, WhoWaitsAndLooksAfterItWaitsForAnyTime) {
  WorkerStalls stalls(kLimits);
  for (int s = 0; s < 100; ++s) EXPECT_EQ(look(stalls, {0, 1}, seconds(s)), Stalls()) << s;
}

TEST(WorkerStalls, AsLongAsNobodyWaitsAWorkerMayComputeForAnyTime) {
  WorkerStalls stalls(kLimits);
  stalls.note(0, works(1), seconds(0));
  stalls.note(1, works(1), seconds(0));
  EXPECT_EQ(stalls.look(seconds(1000)), Stalls());
  stalls.note(0, waits(2), seconds(1000));
  EXPECT_EQ(stalls.look(seconds(1001)), Stalls()) << "the wait has only begun";
}

TEST(WorkerStalls, ProgressWithoutStepsEndsAStall) {
  WorkerStalls stalls(kLimits);
  stalls.note(0, works(1), seconds(0));
  stalls.note(1, waits(1), seconds(0));
  for (int s = 1; s < 60; ++s) {
    stalls.note(0, works(static_cast<std::uint64_t>(1 + s)), seconds(s));  // it evaluates
    EXPECT_EQ(look(stalls, {1}, seconds(s)), Stalls()) << s;
  }
}

TEST(WorkerStalls, SlowStepsAndTheFirstOneMayTakeLonger) {
  WorkerStalls stalls(kLimits);
  stalls.note(0, {.progress = 1, .doing = "step 1"}, seconds(0));
  stalls.note(1, waits(1), seconds(0));
  EXPECT_EQ(look(stalls, {1}, milliseconds(9'900)), Stalls())
      << "five times as long in the first step";
  EXPECT_EQ(look(stalls, {1}, seconds(10)).size(), 1u);
  stalls.note(0, works(2), seconds(11));
  stalls.note(0, works(3), seconds(15));  // a step takes 4 s
  EXPECT_EQ(look(stalls, {1}, milliseconds(34'900)), Stalls());
  EXPECT_EQ(look(stalls, {1}, seconds(35)).size(), 1u) << "5 times the slowest step";
}

TEST(WorkerStalls, WhoHasFinishedWaitsForTheEndOfTheRun) {
  WorkerStalls stalls(kLimits);
  stalls.note(0, works(7), seconds(0));
  stalls.note(1, works(7), seconds(0));
  stalls.finish(1, seconds(3));
  EXPECT_EQ(stalls.look(seconds(5)).size(), 1u);
  ASSERT_EQ(stalls.look(seconds(9)).size(), 1u);
}

TEST(WorkerStalls, WhoSavesAtTheEndMayTakeAnyTime) {
  WorkerStalls stalls(kLimits);
  WorkerPace saves = works(8);
  saves.finishes = true;
  stalls.note(0, saves, seconds(0));
  stalls.note(1, works(7), seconds(0));
  stalls.finish(1, seconds(0));
  ASSERT_EQ(stalls.look(seconds(2)).size(), 1u);
  EXPECT_EQ(stalls.look(seconds(1000)), Stalls());
}

TEST(WorkerStalls, WhoSaysNothingOfItselfIsNotJudged) {
  WorkerStalls stalls(kLimits);
  stalls.note(0, {}, seconds(0));
  stalls.note(1, waits(1), seconds(0));
  EXPECT_EQ(look(stalls, {1}, seconds(1000)), Stalls());
}

TEST(WorkerStalls, LimitsOfZeroAreNone) {
  WorkerStalls stalls({.warning = Duration::zero(), .timeout = Duration::zero()});
  stalls.note(0, works(1), seconds(0));
  stalls.note(1, waits(1), seconds(0));
  EXPECT_EQ(look(stalls, {1}, seconds(100'000)), Stalls());
}

}  // namespace
}  // namespace stormo::protocol
