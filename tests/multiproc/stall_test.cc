// A rank does not come to an operation in which others wait: it is named in time, and the job ends
// with what every rank did. Who is slow, but gets on, is left alone.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using nlohmann::json;
using ::testing::HasSubstr;
using ::testing::Not;
using Words = std::vector<std::string>;

class Stall : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(flight_); }

  Outcome run(const std::string& mode, int rank, const Words& options = {"-n", "3"},
              const std::string& timeout = "1s", const std::string& warning = "500ms") const {
    Words argv{built("stormo"), "run", "--stall-warning", warning, "--stall-timeout", timeout};
    argv.insert(argv.end(), options.begin(), options.end());
    for (const std::string& word :
         {std::string("--"), built("stall_worker"), mode, std::to_string(rank)}) {
      argv.push_back(word);
    }
    return run_to_end(argv, {"STORMO_FLIGHT_FILE=" + flight_});
  }
  /// What the flight recorder wrote of all ranks.
  json records() const {
    std::ifstream in(flight_);
    const json file = json::parse(in, nullptr, /*allow_exceptions=*/false);
    EXPECT_TRUE(file.is_object()) << flight_;
    return file.is_object() ? file["ranks"] : json::array();
  }
  json record_of(int rank) const {
    for (const json& record : records()) {
      if (record["rank"] == rank) return record;
    }
    return {};
  }
  /// Whether a rank saw process `rank`, which answers nothing, in this state of the kernel's.
  bool a_neighbour_saw(int rank, const std::string& state) const {
    for (const json& record : records()) {
      for (const json& seen : record.value("neighbours", json::array())) {
        if (seen["rank"] == rank && seen["threads"][0]["state"] == state) return true;
      }
    }
    return false;
  }
  void expect_operations(int rank, std::size_t at_least) const {
    const json record = record_of(rank);
    ASSERT_TRUE(record.is_object()) << "rank " << rank;
    const json& operations = record["groups"][0]["operations"];
    ASSERT_GE(operations.size(), at_least);
    const json& last = operations.back();
    EXPECT_EQ(last["kind"], "all_reduce");
    EXPECT_EQ(last["bytes"], 4);
    EXPECT_EQ(operations.front()["state"], "done");
  }

  const std::string flight_ =
      ::testing::TempDir() + "flight-" + std::to_string(::getpid()) + ".json";
};

const char* const kWaiting[] = {"ranks 1, 2 wait in it", "ranks 0, 2 wait in it",
                                "ranks 0, 1 wait in it"};

TEST_F(Stall, ARankWedgedInALockIsNamedAndEndsTheJob) {
  for (const int culprit : {0, 1, 2}) {
    SCOPED_TRACE(culprit);
    const Outcome o = run("lock", culprit);
    EXPECT_EQ(o.status, 1) << o.err;
    EXPECT_LT(o.took, 20s);  // a second of silence, and what loaded cores need to report it
    const std::string name = "rank " + std::to_string(culprit) + " (host ";
    EXPECT_THAT(o.err, HasSubstr("warning: " + name));
    EXPECT_THAT(o.err, HasSubstr(") has not reached all_reduce #"));
    EXPECT_THAT(o.err, HasSubstr(kWaiting[culprit]));
    EXPECT_THAT(o.err, HasSubstr("rank " + std::to_string(culprit) + "'s last: step 21 forward"));
    EXPECT_THAT(o.err, HasSubstr("wedged_in_a_lock")) << "where it is";
    for (int rank = 0; rank < 3; ++rank) expect_operations(rank, 20);
    const json stuck = record_of(culprit);
    EXPECT_EQ(stuck["groups"][0]["running"], false);
    EXPECT_THAT(stuck["threads"][0]["stack"].dump(), HasSubstr("wedged_in_a_lock"));
    EXPECT_EQ(record_of((culprit + 1) % 3)["groups"][0]["operations"].back()["state"], "running");
  }
}

TEST_F(Stall, WhoWentOnWithoutTheOthersIsSeenToWaitForThem) {
  for (const char* ranks : {"2", "3"}) {
    const Outcome o = run("root", 1, {"-n", ranks});
    EXPECT_EQ(o.status, 1) << o.err;
    EXPECT_THAT(o.err, HasSubstr("warning: rank 1 (host "));
    EXPECT_THAT(o.err, HasSubstr("wedged_in_a_lock"));
    EXPECT_THAT(o.err, HasSubstr(*ranks == '2' ? "rank 0 waits in it" : "ranks 0, 2 wait in it"));
    EXPECT_EQ(record_of(1)["groups"][0]["running"], false);
    EXPECT_EQ(record_of(0)["groups"][0]["running"], true);
  }
}

TEST_F(Stall, ARankWithoutDataIsNamedAcrossHosts) {
  const Outcome o = run("data", 2, {"-H", "localhost:2,127.0.0.1:1"});
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr("rank 2 (host 127.0.0.1, pid "));
  EXPECT_THAT(o.err, HasSubstr("ranks 0, 1 wait in it"));
  EXPECT_THAT(record_of(2)["threads"][0]["stack"].dump(), HasSubstr("reads_data_that_never_comes"));
  EXPECT_THAT(record_of(2)["threads"][0]["waits_in"].dump(), HasSubstr("pipe"));
}

TEST_F(Stall, AFrozenRankIsSeenByItsNeighbours) {
  const Outcome o = run("stop", 1, {"-n", "3", "--heartbeat", "0s"});
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr("warning: rank 1 (host "));
  EXPECT_THAT(o.err, HasSubstr("): deadline exceeded: rank 1 (host "));
  EXPECT_THAT(o.err, HasSubstr("does not answer"));
  EXPECT_THAT(o.err, HasSubstr("rank 1: its process is stopped"));
  EXPECT_TRUE(a_neighbour_saw(1, "T"));
}

TEST_F(Stall, IsFoundUnderAForeignLauncherEvenInTheRankThatServesTheStore) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<Process>(
        Words{built("stall_worker"), "lock", "0"},
        Words{std::string("RANK=") + rank, std::string("LOCAL_RANK=") + rank, "WORLD_SIZE=2",
              "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
              "MASTER_PORT=" + std::to_string(::getpid()), "STORMO_STALL_WARNING=500ms",
              "STORMO_STALL_TIMEOUT=1s", "STORMO_FLIGHT_FILE=" + flight_}));
  }
  EXPECT_EQ(ranks[1]->wait(), 1) << ranks[1]->err();
  EXPECT_THAT(ranks[1]->err(), HasSubstr("rank 0 (host "));
  EXPECT_THAT(ranks[1]->err(), HasSubstr("wedged_in_a_lock"));
  EXPECT_EQ(ranks[0]->wait(), 1) << "nobody else ends it";
  EXPECT_THAT(ranks[0]->err(), HasSubstr("does not notice that the job has failed: ended"));
}

TEST_F(Stall, AStoppedRankIsWaitedForWhereThatIsWanted) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (const char* rank : {"0", "1"}) {
    ranks.push_back(std::make_unique<Process>(
        Words{built("stall_worker"), "stop", "1"},
        Words{std::string("RANK=") + rank, std::string("LOCAL_RANK=") + rank, "WORLD_SIZE=2",
              "LOCAL_WORLD_SIZE=2", "MASTER_ADDR=127.0.0.1",
              "MASTER_PORT=" + std::to_string(::getpid()), "STORMO_ON_STOPPED=wait",
              "STORMO_HEARTBEAT=500ms", "STORMO_STALL_WARNING=500ms", "STORMO_STALL_TIMEOUT=1s",
              "STORMO_FLIGHT_FILE=" + flight_}));
  }
  EXPECT_TRUE(ranks[1]->wait_for_output("working")) << ranks[1]->err();
  EXPECT_EQ(ranks[0]->wait(5s), -1) << "it waits, longer than all limits";
  ranks[1]->signal(SIGCONT);
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << rank->err();
  EXPECT_THAT(ranks[0]->err(), HasSubstr("warning: rank 1 (host "));
  EXPECT_THAT(ranks[0]->err(), HasSubstr("rank 1: its process is stopped"));
}

TEST_F(Stall, AMessageThatNobodySendsIsOne) {
  const Outcome o = run("message", 2);
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr("recv from 0 ("));
}

TEST_F(Stall, WhoNeverSentAMessageIsNamedByTheOneThatWaitsForIt) {
  const Outcome o = run("unsent", 1, {"-n", "2"});
  EXPECT_EQ(o.status, 1) << o.err;
  EXPECT_THAT(o.err, HasSubstr("rank 0 (host "));
  EXPECT_THAT(o.err, HasSubstr("has not reached recv from 0 ("));
  EXPECT_THAT(o.err, HasSubstr("wedged_in_a_lock"));
}

TEST_F(Stall, ALateRankIsNamedAndTheJobGoesOn) {
  const Outcome o = run("late", 1, {"-n", "3"}, "60s", "1500ms");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.err, "warning: rank 1 (host "), 1) << "one line";
  EXPECT_THAT(o.err, Not(HasSubstr("last operations")));
}

TEST_F(Stall, WhoGetsOnIsNone) {
  const Outcome o = run("beat", 1, {"-n", "3"}, "1500ms", "1500ms");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, Not(HasSubstr("has not reached")));
}

TEST_F(Stall, RanksThatAllComputeForLongAreNone) {
  const Outcome o = run("alone", 1, {"-n", "3"}, "1500ms", "1500ms");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, Not(HasSubstr("has not reached")));
}

TEST_F(Stall, IsNeverOneWhenItIsSwitchedOff) {
  const Outcome o = run("pause", 1, {"-n", "3"}, "0s", "0s");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_THAT(o.err, Not(HasSubstr("has not reached")));
}

}  // namespace
}  // namespace stormo::testing
