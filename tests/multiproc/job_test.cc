// A group of real processes in which one goes wrong: everybody ends, and the first cause is named.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/transport/store/store.h>
#include <unistd.h>

#include <csignal>
#include <fstream>
#include <string>

#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

const std::string kStormo = built("stormo");
const std::string kWorker = built("job_worker");

Words job(const std::string& mode, int culprit, const Words& options = {"-n", "3"}) {
  Words argv{kStormo, "run"};
  argv.insert(argv.end(), options.begin(), options.end());
  for (const std::string& word : {std::string("--"), kWorker, mode, std::to_string(culprit)}) {
    argv.push_back(word);
  }
  return argv;
}

TEST(Job, EndsWellWhenEveryRankDoes) {
  const Outcome o = run_to_end(job("good", 1));
  EXPECT_EQ(o.status, 0) << o.err;
}

TEST(Job, SubgroupsWithinAndBetweenHosts) {
  const Outcome o = run_to_end(job("pairs", 0, {"-H", "localhost:2,127.0.0.1:2"}));
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "right sum"), 12) << o.out;
}

TEST(Job, AnyKilledRankEndsAll) {
  for (const int victim : {0, 1, 2}) {
    Process process(job("forever", victim));
    ASSERT_TRUE(process.wait_for_output("running", 3)) << process.err();
    const pid_t pid = process.rank(victim, kWorker);
    ASSERT_GT(pid, 0);
    ASSERT_EQ(::kill(pid, SIGKILL), 0);
    EXPECT_EQ(process.wait(), 1) << process.err();
    EXPECT_TRUE(process.wait_until_all_gone(0s));
    EXPECT_THAT(process.err(), HasSubstr("rank " + std::to_string(victim) + " (host "));
    EXPECT_THAT(process.err(), HasSubstr("SIGKILL"));
    EXPECT_THAT(process.err(), HasSubstr("all_reduce #")) << "the operation";
  }
}

/// What is left of its process is ended by the ranks beside it.
TEST(Job, AFrozenRankIsFoundByItsHeartbeatAndEndsTheJob) {
  Process process(job("forever", 1, {"-n", "2"}));
  ASSERT_TRUE(process.wait_for_output("running", 2)) << process.err();
  ASSERT_EQ(::kill(process.rank(1, kWorker), SIGSTOP), 0);
  EXPECT_EQ(process.wait(), 1);
  EXPECT_THAT(process.err(), HasSubstr("rank 1 (host "));
  EXPECT_THAT(process.err(), HasSubstr("silent for"));
}

TEST(Job, ARankThatLeavesWithoutFinalisingIsAFailure) {
  const Outcome o = run_to_end(job("exit0", 1));
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_LT(o.took, 30s);
  EXPECT_THAT(o.err, HasSubstr("rank 1 (host "));
  EXPECT_THAT(o.err, HasSubstr("ended with exit status 0 before it left the group"));
  EXPECT_THAT(o.err, HasSubstr("destroy stormo::World, or call finalize()"));
}

TEST(Job, AReportedFailureIsTheFirstCause) {
  const Outcome o = run_to_end(job("throw", 2));
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr("stormo: rank 2 (host ")) << "the report's first line";
  EXPECT_GE(count(o.err, "no such luck"), 4) << "every rank's word, and the report\n" << o.err;
}

TEST(Job, MismatchedCallsRaiseOnEveryRankWithATable) {
  for (const char* mode : {"mismatch", "large-mismatch", "skip"}) {
    const Outcome o = run_to_end(job(mode, 1));
    EXPECT_EQ(o.status, 1) << o.err;
    EXPECT_THAT(o.err, HasSubstr("mismatched operation")) << mode;
    EXPECT_GE(count(o.err, "rank 0: all_reduce #"), 1) << o.err;
    EXPECT_GE(count(o.err, "of 1000 float32"), 2) << o.err;
  }
}

TEST(Job, MismatchedCallsBetweenHostsRaiseOnEveryRankWithATable) {
  for (const int culprit : {0, 2}) {  // two ranks on its host; alone there
    for (const char* mode : {"mismatch", "large-mismatch", "skip"}) {
      const Outcome o = run_to_end(job(mode, culprit, {"-H", "localhost:2,127.0.0.1:1"}));
      EXPECT_EQ(o.status, 1) << o.err;
      EXPECT_LT(o.took, 30s);
      EXPECT_THAT(o.err, HasSubstr("mismatched operation")) << mode;
      for (int r = 0; r < 3; ++r) {
        EXPECT_THAT(o.err, HasSubstr("rank " + std::to_string(r) + ": testing, ")) << mode;
      }
      EXPECT_GE(count(o.err, "of 1000 float32"), 2) << o.err;
    }
  }
}

/// A variable in the environment of a running process.
std::string variable_of(pid_t pid, const std::string& name) {
  const std::string environment = read_proc("/proc/" + std::to_string(pid) + "/environ");
  const std::size_t at = environment.find(name + "=");
  if (at == std::string::npos) return {};
  return environment.substr(at + name.size() + 1).c_str();
}

TEST(Job, WhoHasNoSecretCannotSayThatItFailed) {
  Process process(job("forever", 1, {"-n", "2"}));
  ASSERT_TRUE(process.wait_for_output("running", 2)) << process.err();
  const pid_t rank = process.rank(1, kWorker);
  ASSERT_GT(rank, 0);
  // the same user, the same network namespace: only the secret is missing
  const transport::StoreAddress address{variable_of(rank, "STORMO_STORE")};
  ASSERT_THAT(address.text, HasSubstr("unix:"));
  for (const auto& secret : {transport::Secret(), transport::Secret::random()}) {
    const auto stranger = transport::StoreClient::connect({.address = address, .secret = secret},
                                                          Deadline::after(300ms));
    EXPECT_FALSE(stranger.ok());
    if (stranger.ok()) {
      (void)(*stranger)->set("failure", "forged by a stranger", Deadline::after(1s));
    }
  }
  ASSERT_EQ(::kill(rank, SIGKILL), 0);
  EXPECT_EQ(process.wait(), 1) << process.err();
  EXPECT_THAT(process.err(), Not(HasSubstr("forged")));
  EXPECT_THAT(process.err(), HasSubstr("wrong secret")) << "and the visit was reported";
}

TEST(Job, MixedVersionsAreRefusedBeforeTheFirstStep) {
  const Outcome o = run_to_end(job("version", 1));
  EXPECT_EQ(o.status, 2) << o.err;
  EXPECT_THAT(o.err, HasSubstr("0.0.7"));
  EXPECT_THAT(o.err, HasSubstr("install one version"));
  EXPECT_EQ(o.out.find("running"), std::string::npos);
}

}  // namespace
}  // namespace stormo::testing
