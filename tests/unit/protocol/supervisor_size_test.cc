// Elastic jobs that get more ranks or fewer, in virtual time.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include "supervised_job.h"

namespace stormo::protocol {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

RankPlace place_on(int cross_rank, const std::string& host) {
  return {.cross_rank = cross_rank, .host = host, .may_be_lost = true, .stands_in = 1};
}

TEST(JobSize, TheLastRanksLeaveAndNobodyTakesTheirPlace) {
  ElasticJob job(4);
  job.tell(SizeAsked{.ranks = 2});
  EXPECT_THAT(job.leaves, ElementsAre(3, 2));
  EXPECT_EQ(job.supervisor.num_ranks(), 2);
  EXPECT_TRUE(job.supervisor.is_anybody_leaving());
  for (const Rank r : {2, 3}) job.tell(Exited{r, 0});
  EXPECT_FALSE(job.supervisor.is_anybody_leaving());
  EXPECT_THAT(job.left, ElementsAre("rank 2 (host b, pid 102) has left",
                                    "rank 3 (host b, pid 103) has left"));
  EXPECT_FALSE(job.wait_for_wish()) << "the job has not ended";
  EXPECT_THAT(job.starts, IsEmpty());
  EXPECT_THAT(job.lost, IsEmpty());
  for (const Rank r : {0, 1}) job.tell(Exited{r, 0});
  job.finish();
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(JobSize, LossesAfterwardsAreThoseOfTheRanksThatAreLeft) {
  ElasticJob job(4);
  job.tell(SizeAsked{.ranks = 2});
  for (const Rank r : {2, 3}) job.tell(Exited{r, 0});
  job.tell(Signalled{1, SIGKILL});
  EXPECT_THAT(job.starts, ElementsAre(StartRank{1, 2}));
  job.tell(Started{1, 200});
  job.tell(Exited{1, 75});
  job.tell(Exited{0, 75});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 75) << "who has left has not ended well";
}

TEST(JobSize, WhoHasLeftComesBackFirst) {
  ElasticJob job(4);
  job.tell(SizeAsked{.ranks = 2});
  for (const Rank r : {2, 3}) job.tell(Exited{r, 0});
  EXPECT_EQ(job.supervisor.num_free(), 2);
  job.tell(SizeAsked{.ranks = 3});
  EXPECT_THAT(job.starts, ElementsAre(StartRank{2, 2}));
  job.tell(Started{2, 200});
  EXPECT_THAT(job.started, ElementsAre("rank 2 (host b, pid 200) is started again"));
  EXPECT_EQ(job.supervisor.num_ranks(), 3);
}

TEST(JobSize, WhoIsAskedBackBeforeItHasLeftComesWhenItHas) {
  ElasticJob job(2);
  job.tell(SizeAsked{.ranks = 1});
  job.tell(SizeAsked{.ranks = 2});
  EXPECT_THAT(job.starts, IsEmpty());
  EXPECT_EQ(job.supervisor.num_ranks(), 2);
  job.tell(Exited{1, 0});
  EXPECT_THAT(job.starts, ElementsAre(StartRank{1, 2}));
}

TEST(JobSize, NewRanksAreNumberedBehindAllOthersAndJoinThem) {
  ElasticJob job(4);
  EXPECT_EQ(job.supervisor.num_free(), 0);
  job.tell(SizeAsked{.ranks = 5, .places = {place_on(0, "a")}});
  EXPECT_THAT(job.starts, ElementsAre(StartRank{4, 2}));
  EXPECT_EQ(job.supervisor.num_on_host(0), 3);
  job.tell(Started{4, 200});
  EXPECT_THAT(job.started, ElementsAre("rank 4 (host a, pid 200) is started"));
  job.tell(Signalled{4, SIGKILL});
  EXPECT_EQ(job.starts.back(), (StartRank{4, 3})) << "as every rank";
  job.tell(Started{4, 201});
  EXPECT_EQ(job.started.back(), "rank 4 (host a, pid 201) is started again");
}

TEST(JobSize, ARankThatDiesInsteadOfLeavingIsLostForGood) {
  ElasticJob job(2);
  job.tell(SizeAsked{.ranks = 1});
  job.tell(Signalled{1, SIGKILL});
  EXPECT_THAT(job.lost, ElementsAre("rank 1 (host a, pid 101) killed by signal 9 (SIGKILL)"));
  EXPECT_THAT(job.starts, IsEmpty());
  EXPECT_FALSE(job.wait_for_wish());
}

TEST(JobSize, OneThatStartsMayDieOfTheSignalThatTellsItToLeave) {
  ElasticJob job(2);
  job.tell(Signalled{1, SIGKILL});
  job.tell(SizeAsked{.ranks = 1});
  EXPECT_THAT(job.leaves, ElementsAre(1));
  job.tell(Started{1, 200});
  job.tell(Signalled{1, SIGTERM});
  EXPECT_THAT(job.left, ElementsAre("rank 1 (host a, pid 200) has left"));
  EXPECT_EQ(job.lost.size(), 1u);
}

TEST(JobSize, OneThatWaitsToBeStartedAgainIsNotStarted) {
  ElasticJob job(2);
  for (int i = 0; i < 2; ++i) job.lose(1);
  job.tell(Signalled{1, SIGKILL});
  job.tell(SizeAsked{.ranks = 1});
  EXPECT_THAT(job.leaves, IsEmpty());
  EXPECT_FALSE(job.wait_for_wish());
  EXPECT_EQ(job.starts.size(), 2u);
}

// Somebody has told the rank itself, as a scheduler does that takes its core away.
TEST(JobSize, ARankLeavesByItself) {
  ElasticJob job(3);
  job.tell(Exited{1, kHasLeft});
  EXPECT_THAT(job.left, ElementsAre("rank 1 (host a, pid 101) has left"));
  EXPECT_EQ(job.supervisor.num_ranks(), 2);
  EXPECT_THAT(job.starts, IsEmpty());
  EXPECT_FALSE(job.wait_for_wish());
  for (const Rank r : {0, 2}) job.tell(Exited{r, 0});
  job.finish();
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(JobSize, AHostThatIsTakenAwayGetsNoRankAgain) {
  ElasticJob job(4);
  job.tell(HostLeaves{1});
  EXPECT_THAT(job.leaves, ElementsAre(2, 3));
  for (const Rank r : {2, 3}) job.tell(Exited{r, 0});
  job.tell(HostLost{1, "the remote shell closed the connection"});
  EXPECT_EQ(job.supervisor.num_free(), 0);
  EXPECT_TRUE(job.supervisor.is_closed(1));
  EXPECT_FALSE(job.supervisor.is_closed(0));
  job.tell(SizeAsked{.ranks = 3});
  EXPECT_THAT(job.starts, IsEmpty());
  for (const Rank r : {0, 1}) job.tell(Exited{r, 0});
  job.finish();
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

// All stop then, as after a signal for the job.
TEST(JobSize, WhenAllAreTakenAwayTheJobIsInterrupted) {
  ElasticJob job(4);
  for (const int host : {0, 1}) job.tell(HostLeaves{host});
  for (const Rank r : {0, 1, 2, 3}) job.tell(Exited{r, 143});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 143);
}

TEST(JobSize, ASignalOfTheUserEndsThoseThatLeaveToo) {
  ElasticJob job(3);
  job.tell(SizeAsked{.ranks = 2});
  job.tell(UserSignal{SIGTERM});
  EXPECT_THAT(job.signals, ElementsAre(SIGTERM));
  job.tell(Exited{2, 0});
  for (const Rank r : {0, 1}) job.tell(Exited{r, 143});
  job.finish();
  EXPECT_EQ(job.done->exit_code, 143);
}

TEST(JobSize, AJobThatEndsKeepsItsSize) {
  ElasticJob job(3);
  job.tell(Exited{0, 0});
  EXPECT_FALSE(job.supervisor.may_change());
  job.tell(SizeAsked{.ranks = 1});
  job.tell(HostLeaves{0});
  EXPECT_THAT(job.leaves, IsEmpty());
  ElasticJob fixed(3, /*replaces=*/false);
  EXPECT_FALSE(fixed.supervisor.may_change());
  fixed.tell(SizeAsked{.ranks = 1});
  EXPECT_THAT(fixed.leaves, IsEmpty());
}

}  // namespace
}  // namespace stormo::protocol
