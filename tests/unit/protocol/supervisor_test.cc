#include <stormo/protocol/supervisor.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <csignal>

#include <stormo/base/rng.h>

#include "supervised_job.h"

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

TEST(Supervisor, EndsWithZeroWhenEveryRankDid) {
  for (int n : {1, 2, 3, 7}) {
    Job job(n);
    for (int r = n - 1; r >= 0; --r) job.tell(Exited{r, 0});
    EXPECT_FALSE(job.done) << "a late report must still find its job";
    ASSERT_TRUE(job.wait_for_wish());
    EXPECT_EQ(job.done, (JobDone{0, ""}));
    EXPECT_TRUE(job.signals.empty());
  }
}

TEST(Supervisor, DoesNotWaitForAReportThatCannotCome) {
  Job job(2);
  job.tell(Exited{0, 0});
  job.tell(AllHeard{});
  EXPECT_FALSE(job.supervisor.lingers());
  EXPECT_FALSE(job.done) << "a rank still runs";
  job.tell(Exited{1, 0});
  EXPECT_TRUE(job.supervisor.lingers());
  job.tell(AllHeard{});
  EXPECT_EQ(job.done, (JobDone{0, ""}));
}

TEST(Supervisor, AReportBeforeTheLastWordCounts) {
  Job job(2);
  for (int r : {0, 1}) job.tell(Exited{r, 0});
  job.tell(FailureReported{"rank 1: connection closed"});
  job.tell(AllHeard{});
  while (job.wait_for_wish()) {
  }
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_THAT(job.first_line(), HasSubstr("rank 1"));
}

TEST(Supervisor, ARankThatEndsWithZeroLeavesTheOthersAlone) {
  Job job(2);
  job.tell(Exited{1, 0});
  job.wait(std::chrono::hours(10));
  EXPECT_FALSE(job.done);
  EXPECT_TRUE(job.signals.empty());
  EXPECT_FALSE(job.supervisor.wakes_at());
}

TEST(Supervisor, TheFirstFailureEndsAll) {
  Job job(3);
  job.tell(Exited{1, 7});
  EXPECT_TRUE(job.signals.empty());
  ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.signals, std::vector{SIGTERM});
  job.tell(Signalled{0, SIGTERM});
  ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.signals, (std::vector{SIGTERM, SIGKILL}));
  job.tell(Signalled{2, SIGKILL});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_EQ(job.done->report, "rank 1 (host a, pid 101) ended with exit status 7");
  EXPECT_LT(job.clock.now() - TimePoint{}, milliseconds(2900));
}

TEST(Supervisor, AReportBeatsABareExitInEitherOrder) {
  for (const bool report_first : {false, true}) {
    Job job(2);
    const FailureReported report{"rank 1: all_reduce #9: bad input"};
    if (report_first) job.tell(report);
    job.tell(Exited{0, 1});
    if (!report_first) job.tell(report);
    job.tell(Exited{1, 3});
    ASSERT_TRUE(job.done) << "explained and gone: nothing to wait for";
    EXPECT_EQ(job.first_line(),
              "rank 1 (host a, pid 101): all_reduce #9: bad input (exit status 3)");
    EXPECT_THAT(job.done->report, HasSubstr("rank 0 (host a, pid 100): exit status 1"));
  }
}

TEST(Supervisor, WhatRank0HasSaidIsNotSaidAgain) {
  const Supervisor::Options options{.rank_0_reports = true};
  const FailureReported report{"rank 1: all_reduce #9: bad input"};
  Job said(Job::places(3, {}, {}), options);
  said.tell(report);
  for (const Rank r : {1, 0, 2}) said.tell(Exited{r, 1});
  EXPECT_EQ(said.done->report,
            "rank 1 (host a, pid 101) ended with exit status 1\n"
            "  rank 0 (host a, pid 100): exit status 1\n"
            "  rank 2 (host b, pid 102): exit status 1");
  Job refused(Job::places(3, {}, {}), options);
  for (const Rank r : {1, 0, 2}) refused.tell(Exited{r, 2});
  ASSERT_TRUE(refused.wait_for_wish());
  ASSERT_TRUE(refused.done);
  EXPECT_EQ(refused.done->exit_code, 2);
  EXPECT_EQ(refused.done->report, "") << "all refuse what rank 0 has told";
  Job killed(Job::places(2, {}, {}), options);
  killed.tell(report);
  killed.tell(Exited{1, 1});
  while (!killed.done && killed.wait_for_wish()) {
    if (!killed.signals.empty()) killed.tell(Signalled{0, SIGTERM});
  }
  ASSERT_TRUE(killed.done);
  EXPECT_THAT(killed.done->report, HasSubstr("bad input")) << "rank 0 could not say it";
}

TEST(Supervisor, CombinesAKillWithTheLastReportedOperation) {
  Job job(2);
  job.tell(Signalled{1, SIGKILL});
  job.tell(FailureReported{"rank 1: connection closed, at step 12, all_reduce #40"});
  EXPECT_TRUE(job.signals.empty()) << "the other rank may say what it knows and end by itself";
  ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.signals, std::vector{SIGTERM});
  job.tell(Signalled{0, SIGTERM});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_EQ(job.first_line(),
            "rank 1 (host a, pid 101) killed by signal 9 (SIGKILL); last reported: connection "
            "closed, at step 12, all_reduce #40");
}

/// The ranks beside it end it, so that it cannot write into their memory any more.
TEST(Supervisor, AFrozenRankIsNamedAsFrozenNotAsKilled) {
  for (const bool report_first : {false, true}) {
    for (const std::string text :
         {"peer lost: rank 1 (host a, pid 101) died; silent for 2.5 s; last reported: step 3",
          "deadline exceeded: rank 0: recv\n  rank 0: step 3\n  rank 1: no answer"}) {
      Job job(2);
      if (report_first) job.tell(FailureReported{text});
      job.tell(Signalled{1, SIGKILL});
      if (!report_first) job.tell(FailureReported{text});
      job.tell(Exited{0, 1});
      ASSERT_TRUE(job.done);
      EXPECT_EQ(job.done->exit_code, 1);
      EXPECT_THAT(job.done->report, Not(HasSubstr("SIGKILL")));
      EXPECT_THAT(job.first_line(), HasSubstr(text.substr(0, text.find(':'))));
    }
  }
}

TEST(Supervisor, ACrashBeatsTheReportOfAPeerThatNoticedIt) {
  Job job(4);
  job.tell(FailureReported{"rank 0: recv from 3: peer lost"});
  job.tell(Signalled{3, SIGSEGV});
  job.tell(Exited{0, 1});
  job.tell(Exited{1, 1});
  job.tell(Exited{2, 1});
  job.wait_for_wish();
  ASSERT_TRUE(job.done);
  EXPECT_THAT(job.first_line(), StartsWith("rank 3 (host b, pid 103) killed by signal 11"));
}

TEST(Supervisor, AnAbortIsNoCrashWhenAnotherRankExplainsIt) {
  Job job(2);
  job.tell(Signalled{1, SIGABRT});  // an uncaught exception that the failure of rank 0 caused
  job.tell(FailureReported{"rank 0: loss is not finite"});
  job.tell(Exited{0, 1});
  ASSERT_TRUE(job.done);
  EXPECT_THAT(job.first_line(), StartsWith("rank 0 (host a, pid 100): loss is not finite"));
}

TEST(Supervisor, AFailureWithoutRankIsPrintedAsItIs) {
  Job job(2);
  job.tell(FailureReported{"store: out of descriptors"});
  job.wait(milliseconds(300));
  job.tell(Signalled{0, SIGTERM});
  job.tell(Signalled{1, SIGTERM});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->report, "store: out of descriptors");
}

TEST(Supervisor, AReportAfterACleanExitFailsTheRun) {
  Job job(2);
  job.tell(Exited{0, 0});
  job.tell(Exited{1, 0});
  job.tell(FailureReported{"rank 1: left without goodbye"});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_EQ(job.first_line(), "rank 1 (host a, pid 101): left without goodbye (exit status 0)");
}

TEST(Supervisor, AnEndWithoutGoodbyeComesWithItsRemedy) {
  Job job(2);
  job.tell(FailureReported{"peer lost: rank 1 (host a, pid 101) " + std::string(kEndedInGroup) +
                           "; connection closed; last reported: testing, all_reduce #50"});
  job.tell(Exited{1, 0});
  job.tell(Exited{0, 1});
  while (!job.done && job.wait_for_wish()) {
  }
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
  EXPECT_THAT(job.first_line(),
              StartsWith("rank 1 (host a, pid 101) ended with exit status 0 before it left"));
  EXPECT_THAT(job.first_line(), HasSubstr("finalize()"));
  EXPECT_THAT(job.first_line(), HasSubstr("last reported: testing, all_reduce #50"));
}

TEST(Supervisor, ForwardsTheUsersSignal) {
  for (const int signal : {SIGINT, SIGTERM}) {
    Job job(2);
    job.tell(UserSignal{signal});
    EXPECT_EQ(job.signals, std::vector{signal});
    job.wait(std::chrono::minutes(5));
    EXPECT_FALSE(job.done) << "saving may take its time";
    job.tell(Exited{0, 128 + signal});
    job.tell(Exited{1, 0});
    job.wait_for_wish();
    ASSERT_TRUE(job.done);
    EXPECT_EQ(job.done->exit_code, 128 + signal);
  }
}

TEST(Supervisor, RanksThatDieOfTheForwardedSignalHaveNotFailed) {
  Job job(2);
  job.tell(UserSignal{SIGINT});
  job.tell(Signalled{0, SIGINT});
  job.tell(FailureReported{"rank 0: connection closed"});
  job.tell(Signalled{1, SIGINT});
  job.wait_for_wish();
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 130);
}

TEST(Supervisor, RanksThatFailBecauseTheForwardedSignalHasKilledOneHaveNotFailed) {
  for (const bool in_order : {true, false}) {
    Job job(2);
    job.tell(UserSignal{SIGTERM});
    if (in_order) job.tell(Signalled{1, SIGTERM});
    job.tell(Exited{0, 1});
    if (!in_order) job.tell(Signalled{1, SIGTERM});
    job.wait_for_wish();
    ASSERT_TRUE(job.done);
    EXPECT_EQ(job.done->exit_code, 143);
  }
  Job job(3);
  job.tell(UserSignal{SIGTERM});
  job.tell(Signalled{1, SIGTERM});
  job.tell(Signalled{2, SIGSEGV});
  job.tell(Exited{0, 1});
  job.wait_for_wish();
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1) << "a crash is one";
}

TEST(Supervisor, AFailureWhileInterruptedIsAFailure) {
  Job job(2);
  job.tell(UserSignal{SIGTERM});
  job.tell(Exited{0, 1});
  job.wait(milliseconds(300));
  job.tell(Signalled{1, SIGTERM});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
}

TEST(Supervisor, ASecondSignalKills) {
  Job job(2);
  job.tell(UserSignal{SIGINT});
  job.tell(UserSignal{SIGINT});
  EXPECT_EQ(job.signals, (std::vector{SIGINT, SIGKILL}));
  job.tell(Signalled{0, SIGKILL});
  job.tell(Signalled{1, SIGKILL});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 130);
  EXPECT_THAT(job.done->report, Not(HasSubstr("memory")));
}

TEST(Supervisor, OtherSignalsOfTheUserArePassedOn) {
  Job job(1);
  job.tell(UserSignal{SIGUSR1});
  job.tell(UserSignal{SIGUSR1});
  EXPECT_EQ(job.signals, (std::vector{SIGUSR1, SIGUSR1}));
}

TEST(Supervisor, PassesConfigurationAndSavedExitsThrough) {
  for (const int code : {2, 75}) {
    Job job(2);
    job.tell(Exited{0, code});
    job.tell(Exited{1, code});
    job.wait(milliseconds(300));
    ASSERT_TRUE(job.done);
    EXPECT_EQ(job.done->exit_code, code);
  }
}

// On a busy machine the rank that refuses a configuration may need longer than the others are
// given.
TEST(Supervisor, AConfigurationThatIsRefusedLateStillGivesTheExitCode) {
  Job job(2);
  job.tell(FailureReported{"rank 0: resume: the checkpoint belongs to another model"});
  job.wait(milliseconds(300));
  ASSERT_EQ(job.signals, std::vector{SIGTERM});
  job.tell(Signalled{1, SIGTERM});
  job.tell(Exited{0, 2});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 2);
}

TEST(Supervisor, WhatARankSaysWhileItIsEndedHidesNoCrash) {
  Job job(2);
  job.tell(Signalled{0, SIGSEGV});
  job.wait(milliseconds(300));
  job.tell(Exited{1, 2});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
}

// The survivors of a lost rank say that they have saved, one of them late.
TEST(Supervisor, ASurvivorThatHasSavedGivesTheExitCodeEvenWhileItIsEnded) {
  Job job(3);
  job.tell(Signalled{1, SIGKILL});
  job.wait(milliseconds(300));
  ASSERT_EQ(job.signals, std::vector{SIGTERM});
  job.tell(Exited{0, 75});
  job.tell(Signalled{2, SIGTERM});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 75);
  EXPECT_THAT(job.first_line(), HasSubstr("rank 1"));
}

TEST(Supervisor, RanksThatWereInterruptedThemselvesEndTheRunAsInterrupted) {
  Job job(2);
  job.tell(Exited{0, 143});
  EXPECT_TRUE(job.signals.empty());
  job.tell(Exited{1, 143});
  while (!job.done) ASSERT_TRUE(job.wait_for_wish());
  EXPECT_EQ(job.done->exit_code, 143);
}

TEST(Supervisor, RanksThatDoNotFollowAnInterruptedOneAreEnded) {
  Job job(2);
  job.tell(Exited{0, 130});
  job.wait(std::chrono::seconds(10));
  EXPECT_EQ(job.signals, std::vector{SIGTERM});
  job.tell(Signalled{1, SIGTERM});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.done->exit_code, 1);
}

TEST(Supervisor, ALostHostEndsTheOthers) {
  Job job(4);
  job.tell(HostLost{1, "remote shell ended with exit status 255"});
  job.wait(milliseconds(300));
  EXPECT_EQ(job.signals, std::vector{SIGTERM});
  job.tell(Signalled{0, SIGTERM});
  job.tell(Signalled{1, SIGTERM});
  ASSERT_TRUE(job.done);
  EXPECT_EQ(job.first_line(), "host b lost: remote shell ended with exit status 255");
}

TEST(Supervisor, AHostThatHangsUpAfterItsRanksIsNotLost) {
  Job job(4);
  job.tell(Exited{2, 0});
  job.tell(Exited{3, 0});
  job.tell(HostLost{1, "end of stream"});
  EXPECT_FALSE(job.supervisor.wakes_at());
}

TEST(Supervisor, GivesUpOnAHostThatConfirmsNothing) {
  Job job(3);
  job.tell(Exited{0, 1});
  while (job.wait_for_wish()) {
  }
  ASSERT_TRUE(job.done);
  EXPECT_THAT(job.done->report, HasSubstr("2 ranks did not confirm their end"));
  EXPECT_LE(job.clock.now() - TimePoint{}, milliseconds(2500));
}

TEST(Supervisor, ADeathBySignalComesWithItsRemedy) {
  for (const auto& [signal, says] :
       {std::pair(SIGXFSZ, "ulimit -f"), std::pair(SIGBUS, "became shorter"),
        std::pair(SIGXCPU, "ulimit -t"), std::pair(SIGKILL, "dmesg")}) {
    Job job(2);
    job.tell(Signalled{1, signal});
    job.tell(Exited{0, 1});
    while (!job.done && job.wait_for_wish()) {
    }
    ASSERT_TRUE(job.done);
    EXPECT_THAT(job.done->report, HasSubstr(says));
  }
}

TEST(Supervisor, WhatAHostKnowsOfADeathBeatsTheUsualRemedy) {
  Job job(2);
  job.tell(Signalled{1, SIGKILL, "out of memory: start fewer ranks"});
  job.tell(Exited{0, 1});
  while (!job.done && job.wait_for_wish()) {
  }
  ASSERT_TRUE(job.done);
  EXPECT_THAT(job.done->report, HasSubstr("\n  out of memory: start fewer ranks"));
  EXPECT_THAT(job.done->report, Not(HasSubstr("comes from outside")));
}

TEST(Supervisor, NamedRankReadsTextsOfAnyForm) {
  EXPECT_EQ(named_rank("rank 12: x"), 12);
  EXPECT_EQ(named_rank("step 4: rank 3 (host b) died"), 3);
  EXPECT_EQ(named_rank("rank x, rank 5"), 5);
  EXPECT_EQ(named_rank("frank"), std::nullopt);
  EXPECT_EQ(named_rank(""), std::nullopt);
  EXPECT_EQ(named_rank("rank 99999999999999999999"), std::nullopt);
}

/// Whatever arrives in whatever order: the job is done exactly once, in bounded time after the
/// first failure, never with 0 after a failure, and a failed job's first line is never empty.
TEST(Supervisor, RandomEventOrders) {
  int failed_jobs = 0;
  for (std::uint64_t seed = 0; seed < 3000; ++seed) {
    Rng rng(seed, "supervisor");
    const int n = 1 + static_cast<int>(rng.below(6));
    Job job(n);
    std::optional<TimePoint> failed_at;
    for (int step = 0; step < 40 && !job.done; ++step) {
      const Rank rank = static_cast<Rank>(rng.below(static_cast<std::uint64_t>(n) + 1));
      const int before = job.times_done;
      switch (rng.below(10)) {
        case 0: job.tell(Exited{rank, 0}); break;
        case 1: job.tell(Exited{rank, rng.below(2) ? 1 : 75}); break;
        case 2: job.tell(Signalled{rank, rng.below(2) ? SIGKILL : SIGABRT}); break;
        case 3: job.tell(FailureReported{"rank " + std::to_string(rank) + ": why"}); break;
        case 4: job.tell(UserSignal{SIGINT}); break;
        case 5: job.tell(HostLost{rank / 2, "gone"}); break;
        case 6: job.wait(milliseconds(rng.below(400))); break;
        case 7: job.tell(AllHeard{}); break;
        default: job.wait_for_wish(); break;
      }
      EXPECT_LE(job.times_done - before, 1);
      const bool terminating = std::count(job.signals.begin(), job.signals.end(), SIGTERM) > 0;
      if (terminating && !failed_at) failed_at = job.clock.now();
    }
    for (int r = 0; r < n; ++r) job.tell(Exited{r, 0});
    while (job.wait_for_wish()) {
    }
    ASSERT_EQ(job.times_done, 1) << "seed " << seed;
    EXPECT_LE(std::count(job.signals.begin(), job.signals.end(), SIGKILL), 1);
    if (failed_at) {
      ++failed_jobs;
      EXPECT_NE(job.done->exit_code, 0) << "seed " << seed;
      EXPECT_FALSE(job.first_line().empty()) << "seed " << seed;
    }
    if (job.done->exit_code != 0) {
      EXPECT_FALSE(job.first_line().empty());
    }
    const std::vector<JobAction> after = job.supervisor.handle(Exited{0, 1}, job.clock.now());
    EXPECT_TRUE(after.empty());
  }
  EXPECT_GT(failed_jobs, 500);
}

}  // namespace
}  // namespace stormo::protocol
