#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "supervised_job.h"

namespace stormo::protocol {
namespace {

using ::testing::StartsWith;

TEST(Supervisor, TheJobGoesOnWithoutRanksThatMayBeLost) {
  Job job(4, {1, 2});
  job.tell(Signalled{1, SIGKILL});
  job.tell(Exited{2, 1});
  EXPECT_THAT(job.lost,
              testing::ElementsAre("rank 1 (host a, pid 101) killed by signal 9 (SIGKILL)",
                                   "rank 2 (host b, pid 102) ended with exit status 1"));
  EXPECT_FALSE(job.wait_for_wish()) << "nothing ends the others";
  for (const Rank r : {0, 3}) job.tell(Exited{r, 0});
  while (!job.done && job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done, (JobDone{0, ""}));
  EXPECT_TRUE(job.signals.empty());
}

TEST(Supervisor, AHostOfRanksThatMayBeLostMayBeLost) {
  Job job(4, {2, 3});
  job.tell(HostLost{1, "no answer"});
  EXPECT_EQ(job.lost.size(), 2u);
  for (const Rank r : {0, 1}) job.tell(Exited{r, 0});
  while (!job.done && job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(Supervisor, AFailureOfAnotherRankStillEndsAll) {
  Job job(3, {1, 2});
  job.tell(Signalled{1, SIGKILL});
  job.tell(Signalled{0, SIGSEGV});
  ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.signals, std::vector<int>{SIGTERM});
  job.tell(Exited{2, 1});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_THAT(job.first_line(), StartsWith("rank 0 (host a, pid 100) killed by signal 11"));
}

// Servers with copies each may be lost, but not all: a chief that is stopped never ends.
TEST(Supervisor, WithoutAnyRankThatHoldsTheRunItIsOver) {
  for (const Rank stays : {2, 3}) {
    Job job(4, {1, 2, 3}, /*holders=*/{2, 3});
    job.tell(Exited{1, 1});
    job.tell(Signalled{5 - stays, SIGKILL});
    EXPECT_EQ(job.lost.size(), 2u);
    EXPECT_FALSE(job.wait_for_wish()) << "one is left";
    job.tell(Exited{stays, 75});
    while (!job.done && job.wait_for_wish()) {
    }
    ASSERT_TRUE(job.done) << "rank 0 has not ended";
    EXPECT_EQ(job.signals, (std::vector<int>{SIGTERM, SIGKILL}));
    EXPECT_EQ(job.done->exit_code, 75);
    EXPECT_THAT(job.first_line(), StartsWith("rank " + std::to_string(stays)));
  }
}

TEST(Supervisor, AHostOfAllThatHoldTheRunEndsIt) {
  Job job(4, {1, 2, 3}, /*holders=*/{2, 3});
  job.tell(HostLost{1, "no answer"});
  while (!job.done && job.wait_for_wish()) {
  }
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
}

/// Three workers and two servers that stand in for each other.
std::vector<RankPlace> all_may_be_lost() {
  std::vector<RankPlace> out;
  for (Rank r = 0; r < 5; ++r) {
    out.push_back({.cross_rank = 0, .host = "a", .may_be_lost = true, .stands_in = r < 3 ? 1 : 2});
  }
  return out;
}

TEST(Supervisor, WhereAllMayBeLostOthersGoOnWithoutRank0) {
  Job job(all_may_be_lost());
  job.tell(Signalled{0, SIGKILL});
  job.tell(Exited{4, 1});
  EXPECT_EQ(job.lost.size(), 2u);
  EXPECT_FALSE(job.wait_for_wish()) << "nothing ends the others";
  for (const Rank r : {1, 3}) job.tell(Exited{r, 0});
  EXPECT_FALSE(job.done);
  ASSERT_TRUE(job.wait_for_wish()) << "the last one has some time";
  EXPECT_EQ(job.signals, std::vector<int>{SIGTERM});
  job.tell(Signalled{2, SIGTERM});
  while (!job.done && job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(Supervisor, WhereAllMayBeLostTheLastOfItsKindIsNeeded) {
  for (const auto& kind : {std::vector<Rank>{0, 1, 2}, std::vector<Rank>{3, 4}}) {
    Job job(all_may_be_lost());
    for (const Rank r : kind) job.tell(Signalled{r, SIGKILL});
    EXPECT_EQ(job.lost.size(), kind.size() - 1);
    while (!job.done && job.wait_for_wish()) {
    }
    ASSERT_TRUE(job.done);
    EXPECT_EQ(job.done->exit_code, 1);
  }
}

TEST(Supervisor, WhoFailsAfterAnotherHasSeenTheEndIsNotNeeded) {
  Job job(all_may_be_lost());
  job.tell(Signalled{0, SIGKILL});
  job.tell(Exited{3, 0});
  job.tell(Exited{4, 75});
  for (const Rank r : {1, 2}) job.tell(Exited{r, 0});
  while (!job.done && job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(Supervisor, Rank0MayReportUntilItIsTheLastOne) {
  Job job(all_may_be_lost());
  for (const Rank r : {4, 3, 2}) job.tell(Exited{r, 0});
  EXPECT_FALSE(job.wait_for_wish()) << "rank 1 has not ended either";
  job.tell(Exited{1, 0});
  ASSERT_TRUE(job.wait_for_wish()) << "it may be stopped on another host";
  EXPECT_EQ(job.signals, std::vector<int>{SIGTERM});
  while (!job.done && job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done->exit_code, 0);
}

TEST(Supervisor, RanksThatMayBeLostAreEndedWhenTheOthersAreDone) {
  Job job(2, {1});
  job.tell(Exited{0, 0});
  ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.signals, std::vector<int>{SIGTERM});
  job.tell(Signalled{1, SIGTERM});
  while (!job.done && job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

}  // namespace
}  // namespace stormo::protocol
