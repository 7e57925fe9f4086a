// Lost ranks that are started again, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>
#include <functional>

#include "supervised_job.h"

namespace stormo::protocol {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::StartsWith;

TEST(Restarts, ALostRankIsStartedAgain) {
  ElasticJob job(4);
  job.tell(Signalled{2, SIGKILL});
  EXPECT_THAT(job.lost, ElementsAre("rank 2 (host b, pid 102) killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(job.starts, ElementsAre(StartRank{2, 2}));
  EXPECT_FALSE(job.wait_for_wish()) << "it waits for the start, and is in no hurry";
  job.tell(Started{2, 4790});
  EXPECT_THAT(job.started, ElementsAre("rank 2 (host b, pid 4790) is started again"));
  job.tell(Exited{2, 1});
  EXPECT_EQ(job.lost.back(), "rank 2 (host b, pid 4790) ended with exit status 1");
  EXPECT_EQ(job.starts.back(), (StartRank{2, 3}));
  job.tell(Started{2, 4791});
  for (const Rank r : {0, 1, 2, 3}) job.tell(Exited{r, 0});
  job.finish();
  EXPECT_EQ(job.done, (JobDone{0, ""}));
  EXPECT_THAT(job.signals, IsEmpty());
  EXPECT_EQ(job.starts.size(), 2u);
}

TEST(Restarts, TheJobGoesOnWhenAllAreLostAtOnce) {
  ElasticJob job(2);
  for (const Rank r : {0, 1}) job.tell(Signalled{r, SIGKILL});
  EXPECT_THAT(job.starts, ElementsAre(StartRank{0, 2}, StartRank{1, 2}));
  job.wait(1h);
  EXPECT_FALSE(job.done) << "a host may be slow";
  for (const Rank r : {0, 1}) job.tell(Started{r, 200 + r});
  for (const Rank r : {0, 1}) job.tell(Exited{r, 0});
  job.finish();
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(Restarts, WhoIsLostAgainAndAgainWaits) {
  ElasticJob job(2);
  std::vector<Duration> waits;
  for (int i = 0; i < 10; ++i) waits.push_back(job.lose(1));
  EXPECT_THAT(waits, ElementsAre(0s, 0s, 1s, 2s, 4s, 8s, 16s, 32s, 60s, 60s));
  EXPECT_EQ(job.lose(0), 0s) << "the other one has not been lost before";
  job.wait(11min);
  EXPECT_EQ(job.lose(1), 0s) << "that was long ago";
  EXPECT_FALSE(job.done);
}

TEST(Restarts, TheWaitIsToldWithTheLoss) {
  ElasticJob job(2);
  for (int i = 0; i < 2; ++i) job.lose(1);
  const std::vector<JobAction> actions =
      job.supervisor.handle(Signalled{1, SIGKILL}, job.clock.now());
  ASSERT_EQ(actions.size(), 1u);
  EXPECT_EQ(std::get<RankLost>(actions.front()).wait, 1s);
}

TEST(Restarts, AProgramThatAlwaysFailsEnds) {
  for (const int ranks : {1, 2, 3}) {
    ElasticJob job(ranks);
    std::size_t answered = 0;
    for (Rank r = 0; r < ranks; ++r) job.tell(Exited{r, 1});
    while (!job.done) {
      ASSERT_LT(answered, 100u);
      if (answered == job.starts.size()) {
        ASSERT_TRUE(job.wait_for_wish());
        continue;
      }
      const Rank r = job.starts[answered++].rank;
      job.tell(Started{r, job.next_pid++});
      job.tell(Exited{r, 1});
    }
    EXPECT_EQ(job.done->exit_code, 1);
    EXPECT_THAT(job.first_line(), HasSubstr("ended with exit status 1"));
    EXPECT_EQ(job.starts.size(), 2u * static_cast<std::size_t>(ranks)) << "none has to wait first";
  }
}

/// Something after which rank 1 of hosts a: 0 and 1, b: 2 and 3 is not started again, and the end.
struct Obstacle {
  const char* what;
  std::function<void(ElasticJob&)> happens;
  int exit_code;
};

TEST(Restarts, ThereAreNoneOnceTheJobEnds) {
  const std::vector<Obstacle> obstacles = {
      {"another rank has ended well",
       [](ElasticJob& job) {
         job.tell(Exited{0, 0});
       },
       0},
      {"the user wants an end", [](ElasticJob& job) { job.tell(UserSignal{SIGINT}); }, 130},
      {"another rank has ended as interrupted",
       [](ElasticJob& job) {
         job.tell(Exited{0, 143});
       },
       143},
      {"the program says that it has failed",
       [](ElasticJob& job) { job.tell(FailureReported{"rank 0: loss is not finite"}); }, 1},
      {"its host is lost",
       [](ElasticJob& job) {
         job.tell(HostLost{0, "no answer"});
       },
       0}};
  for (const Obstacle& obstacle : obstacles) {
    for (const bool waits : {false, true}) {
      SCOPED_TRACE(std::string(obstacle.what) + (waits ? ", while it waits" : ""));
      ElasticJob job(4);
      for (int i = 0; waits && i < 2; ++i) job.lose(1);
      const std::size_t before = job.starts.size();
      if (waits) job.tell(Signalled{1, SIGKILL});
      obstacle.happens(job);
      if (!waits) job.tell(Signalled{1, SIGKILL});
      job.wait(2s);
      EXPECT_EQ(job.starts.size(), before);
      for (const Rank r : {0, 2, 3}) job.tell(Exited{r, obstacle.exit_code});
      job.finish();
      EXPECT_EQ(job.done->exit_code, obstacle.exit_code);
      EXPECT_EQ(job.starts.size(), before);
    }
  }
}

TEST(Restarts, NotOfWhoFoundAnErrorOfTheUser) {
  ElasticJob job(2);
  job.lose(1);
  job.tell(Exited{1, 2});
  EXPECT_EQ(job.starts.size(), 1u);
  EXPECT_FALSE(job.wait_for_wish()) << "the other one goes on";
  job.tell(Exited{0, 2});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 2);
}

// A replacement that has found nobody who has the state: whoever is left is frozen.
TEST(Restarts, WhoSaysThatTheJobCannotGoOnEndsIt) {
  ElasticJob job(3);
  job.lose(1);
  job.tell(Exited{1, 75});
  job.tell(Tick{});
  EXPECT_EQ(job.starts.size(), 1u);
  job.finish();
  EXPECT_EQ(job.done->exit_code, 75);
  EXPECT_THAT(job.signals, ::testing::Contains(SIGKILL)) << "those that are frozen, too";
}

TEST(Restarts, NotUnlessWanted) {
  ElasticJob job(2, /*replaces=*/false);
  job.tell(Signalled{1, SIGKILL});
  EXPECT_EQ(job.lost.size(), 1u);
  job.tell(Signalled{0, SIGKILL});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 1) << "nobody is left";
  EXPECT_THAT(job.starts, IsEmpty());
}

TEST(Restarts, ASignalReachesWhoeverIsBeingStarted) {
  ElasticJob job(2);
  job.tell(Signalled{1, SIGKILL});
  job.tell(UserSignal{SIGINT});
  EXPECT_THAT(job.signals, ElementsAre(SIGINT));
  job.tell(Exited{0, 130});
  EXPECT_FALSE(job.wait_for_wish()) << "it may have begun, and got the signal";
  job.tell(Started{1, 4790});
  job.tell(Signalled{1, SIGINT});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 130);
}

TEST(Restarts, WhatCannotBeStartedIsTriedAgain) {
  ElasticJob job(2);
  job.tell(Signalled{1, SIGKILL});
  job.tell(NotStarted{1, "no memory"});
  EXPECT_EQ(job.lost.back(), "rank 1 (host a) could not be started again: no memory");
  EXPECT_EQ(job.starts.back(), (StartRank{1, 3}));
  job.tell(NotStarted{1, "no memory"});
  EXPECT_EQ(job.starts.size(), 2u);
  ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.clock.now() - TimePoint{}, 1s);
  EXPECT_EQ(job.starts.size(), 3u);
  job.tell(UserSignal{SIGTERM});
  job.tell(NotStarted{1, "interrupted"});
  EXPECT_EQ(job.lost.size(), 3u) << "that is no failure";
  job.tell(Exited{0, 143});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 143);
}

TEST(Restarts, WithoutAnyRankThatCanBeStartedTheJobEnds) {
  ElasticJob job(1);
  job.tell(Signalled{0, SIGKILL});
  for (int i = 0; i < 2; ++i) job.tell(NotStarted{0, "no memory"});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_THAT(job.first_line(),
              StartsWith("rank 0 (host a) could not be started again: no memory"));
}

}  // namespace
}  // namespace stormo::protocol
