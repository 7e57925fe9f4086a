// Rank 0 serves the job's Store where Stormo's launcher has not started the ranks. It is killed or
// stopped: the others name it, all in the same words.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>

#include "process.h"
#include "tests/built.h"
#include "torchrun_variables.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::ContainsRegex;
using Words = std::vector<std::string>;

constexpr int kRanks = 3;

/// As torchrun starts them; the parameter: ranks on each host.
class ServingRank : public ::testing::TestWithParam<int> {
 protected:
  void start(const std::string& mode, const Words& options) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Words variables = torchrun_variables(rank, kRanks, GetParam(), folder_.path().string());
      variables.insert(variables.end(), options.begin(), options.end());
      ranks_.push_back(
          std::make_unique<Process>(Words{built("stall_worker"), mode, "0"}, variables));
    }
  }
  /// What the others say of the first cause.
  void expect_cause(const std::string& regex) const {
    std::string first;
    for (int rank = 1; rank < kRanks; ++rank) {
      Process& process = *ranks_[static_cast<std::size_t>(rank)];
      EXPECT_EQ(process.wait(), 1) << process.err();
      const std::string cause = process.err().substr(std::min(
          process.err().find("lost rank 0, which serves the Store at "), process.err().size()));
      EXPECT_THAT(cause, ContainsRegex(regex)) << "rank " << rank << ": " << process.err();
      if (first.empty()) first = cause;
      EXPECT_EQ(cause, first);
    }
  }

  const TemporaryFolder folder_ = TemporaryFolder::create("serving-rank").take_or_throw();
  std::vector<std::unique_ptr<Process>> ranks_;
};

TEST_P(ServingRank, WhoWasKilledIsNamedByAll) {
  start("kill", {});
  expect_cause("it closed the connection");
}

TEST_P(ServingRank, WhoIsStoppedIsNamedByAll) {
  start("stop", {"STORMO_HEARTBEAT=2s"});
  expect_cause("it does not answer");
}

TEST_P(ServingRank, IsWaitedForWhereThatIsWanted) {
  start("stop", {"STORMO_HEARTBEAT=500ms", "STORMO_ON_STOPPED=wait"});
  EXPECT_TRUE(ranks_[0]->wait_for_output("working")) << ranks_[0]->err();
  EXPECT_EQ(ranks_[1]->wait(3s), -1) << "it waits, longer than all limits";
  ranks_[0]->signal(SIGCONT);
  for (const auto& rank : ranks_) EXPECT_EQ(rank->wait(), 0) << rank->err();
}

INSTANTIATE_TEST_SUITE_P(OnOneHost, ServingRank, ::testing::Values(kRanks));
INSTANTIATE_TEST_SUITE_P(OnThreeHosts, ServingRank, ::testing::Values(1));

// Somebody has typed Ctrl-Z, or looks at it with a debugger.
TEST(ServingLauncher, IsWaitedFor) {
  Process launcher({built("stormo"), "run", "-n", "2", "--heartbeat", "1s", "--",
                    built("stall_worker"), "late", "1"});
  ASSERT_TRUE(launcher.wait_for_output("working", 2)) << launcher.err();
  launcher.signal(SIGSTOP);
  ::poll(nullptr, 0, 4000);
  launcher.signal(SIGCONT);
  EXPECT_EQ(launcher.wait(), 0) << launcher.err();
}

}  // namespace
}  // namespace stormo::testing
