// Ranks that leave the job in order, at different times: they are no failure, until another rank
// waits for them.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/base/temporary_folder.h>

#include "process.h"
#include "tests/built.h"
#include "torchrun_variables.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

constexpr int kRanks = 3;
constexpr auto kPatience = 60s;  // the ranks work for 5 s

/// Ranks as torchrun starts them. Rank 0 serves the Store.
class Job {
 public:
  Job(std::string mode, const Words& limits, int ranks_per_host) : mode_(std::move(mode)) {
    for (int rank = 0; rank < kRanks; ++rank) {
      Words variables = torchrun_variables(rank, kRanks, ranks_per_host, folder_.path().string());
      variables.push_back("STORMO_FLIGHT_FILE=" + folder_.path().string() + "/flight.json");
      variables.insert(variables.end(), limits.begin(), limits.end());
      ranks_.push_back(std::make_unique<Process>(Words{built("leave_worker"), mode_}, variables));
    }
  }
  const std::string& mode() const { return mode_; }
  Process& rank(int number) const { return *ranks_[static_cast<std::size_t>(number)]; }
  /// Waits until the rank has ended, with this exit code.
  void expect_end(int number, int code) const {
    EXPECT_EQ(rank(number).wait(kPatience), code) << "rank " << number << '\n' << all();
  }
  void expect_cause(int number, const std::string& says) const {
    expect_end(number, 1);
    EXPECT_THAT(rank(number).err(), HasSubstr(says)) << "rank " << number << '\n' << all();
  }
  /// It has left, and lives on; the test ends it.
  void expect_left(int number) const {
    EXPECT_TRUE(rank(number).wait_for_output("left")) << "rank " << number << '\n' << all();
  }
  bool is_running(int number) const {
    const std::string process = "/proc/" + std::to_string(rank(number).pid());
    return !read_proc(process + "/cmdline").empty();
  }
  /// What every rank has said so far.
  std::string all() const {
    std::string text = "mode " + mode_;
    for (int r = 0; r < kRanks; ++r) {
      text += "\nrank " + std::to_string(r) + " out: " + rank(r).out() + "\nerr: " + rank(r).err();
    }
    return text;
  }

 private:
  const TemporaryFolder folder_ = TemporaryFolder::create("leave-test").take_or_throw();
  std::string mode_;
  std::vector<std::unique_ptr<Process>> ranks_;
};

/// Ranks on each host.
class Leave : public ::testing::TestWithParam<int> {
 protected:
  /// Jobs of these modes, side by side.
  static std::vector<std::unique_ptr<Job>> start(const Words& modes, const Words& limits) {
    std::vector<std::unique_ptr<Job>> jobs;
    for (const std::string& mode : modes) {
      jobs.push_back(std::make_unique<Job>(mode, limits, GetParam()));
    }
    return jobs;
  }
};

/// Shorter than what ranks work alone.
const Words kShort = {"STORMO_STALL_WARNING=1s", "STORMO_STALL_TIMEOUT=3s"};
/// No stall and no late heartbeat ends the job before what is tested does.
const Words kLong = {"STORMO_STALL_TIMEOUT=50s", "STORMO_HEARTBEAT=50s"};

// Their time alone passes side by side.
TEST_P(Leave, OthersWorkAloneForLong) {
  const auto jobs = start({"alone", "rank-0-first", "stopped", "isend", "irecv", "async"}, kShort);
  const Job &alone = *jobs[0], &rank_0_first = *jobs[1], &stopped = *jobs[2];
  // it serves the Store: its process stays until the others have left, whatever else it holds
  EXPECT_TRUE(rank_0_first.rank(0).wait_for_output("destroyed")) << rank_0_first.all();
  EXPECT_TRUE(rank_0_first.is_running(1)) << "destroying waits for nobody";
  for (const Job* job : {&alone, &rank_0_first}) {
    for (const int r : {0, 1, 2}) job->expect_end(r, 0);
  }
  EXPECT_EQ(alone.rank(0).err(), "");
  for (const int r : {0, 2}) stopped.expect_end(r, 0);
  stopped.expect_left(1);
  // what is pending when a rank leaves fails nobody
  for (std::size_t i = 3; i < jobs.size(); ++i) {
    for (const int r : {0, 1, 2}) jobs[i]->expect_end(r, 0);
    jobs[i]->expect_left(1);
  }
}

TEST_P(Leave, WhoWaitsForARankThatHasLeftFailsWithItsName) {
  for (const auto& job : start({"ends", "stays", "message"}, kLong)) {
    for (const int r : {0, 2}) job->expect_cause(r, "rank 1 has left in order");
    job->expect_left(1);
    if (job->mode() == "ends") job->expect_end(1, 0);
  }
}

TEST_P(Leave, WhoReceivesFromAnyoneFailsWhenAllOthersHaveLeft) {
  const Job job("any", kLong, GetParam());
  job.expect_cause(0, "ranks 1, 2 have left in order");
  for (const int r : {1, 2}) job.expect_left(r);
}

TEST_P(Leave, ADestroyedGroupIsOneThatItsRankHasLeft) {
  const Job job("subgroup", kLong, GetParam());
  for (const int r : {0, 1, 2}) job.expect_cause(r, "rank 1 has left in order");
}

INSTANTIATE_TEST_SUITE_P(OnOneHost, Leave, ::testing::Values(kRanks));
INSTANTIATE_TEST_SUITE_P(OnThreeHosts, Leave, ::testing::Values(1));

}  // namespace
}  // namespace stormo::testing
