// Ranks that meet in a store of another program, without a launcher: worlds on one host and on
// several, many of them in a process, and what goes wrong while they form.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/stat.h>

#include <chrono>
#include <csignal>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>

#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
namespace fs = std::filesystem;
using Words = std::vector<std::string>;

class World : public ::testing::Test {
 protected:
  /// `before`: what starts the rank ("ip netns exec ...").
  std::unique_ptr<Process> start(int rank, int size, const std::string& mode,
                                 const Words& variables = {}, const Words& before = {}) const {
    Words all{"XDG_RUNTIME_DIR=" + folder_.string(), "HOME=" + folder_.string(),
              "STORMO_HEARTBEAT=2500ms", "STORMO_JOIN_TIMEOUT=20s"};
    all.insert(all.end(), variables.begin(), variables.end());
    Words words = before;
    for (const std::string& w : {built("world_worker"), (folder_ / "bulletin").string(),
                                 std::to_string(rank), std::to_string(size), mode}) {
      words.push_back(w);
    }
    return std::make_unique<Process>(words, all);
  }
  /// All ranks; the last one first, as it has to wait.
  std::vector<std::unique_ptr<Process>> start_all(int size, const std::string& mode,
                                                  const Words& variables = {}) const {
    std::vector<std::unique_ptr<Process>> ranks(static_cast<std::size_t>(size));
    for (int rank = size - 1; rank >= 0; --rank) {
      ranks[static_cast<std::size_t>(rank)] = start(rank, size, mode, variables);
    }
    return ranks;
  }
  static void expect_good(const std::vector<std::unique_ptr<Process>>& ranks,
                          const std::string& output, std::chrono::seconds at_most = kGenerous) {
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait(at_most), 0) << rank->err();
      EXPECT_THAT(rank->out(), HasSubstr(output));
      EXPECT_EQ(rank->err(), "");
    }
  }
  static void expect_refused(const std::vector<std::unique_ptr<Process>>& ranks,
                             const std::string& why) {
    for (const auto& rank : ranks) {
      EXPECT_EQ(rank->wait(), 1);
      EXPECT_THAT(rank->err(), HasSubstr(why));
    }
  }
  Words left() const {
    Words names;
    std::error_code not_yet;
    for (const auto& entry : fs::directory_iterator(folder_ / "stormo", not_yet)) {
      names.push_back(entry.path().filename());
    }
    return names;
  }

  const TemporaryFolder temporary_ = TemporaryFolder::create("world-test").take_or_throw();
  const fs::path folder_ = temporary_.path();
};

TEST_F(World, FormsOnOneHostAndLeavesNothing) {
  expect_good(start_all(3, "one"), "hosts 3\n");
  struct stat info {};
  ASSERT_EQ(::stat((folder_ / "stormo").c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(World, OfOneRankNeedsNobody) {
  expect_good(start_all(1, "one"), "hosts 1\n");
  EXPECT_FALSE(fs::exists(folder_ / "stormo"));
}

// The file of several hosts is not needed, and not written.
TEST_F(World, OnOneHostTakesTheSecretOverTheProofWhateverIsSet) {
  const std::string file = folder_ / "rendezvous";
  expect_good(start_all(2, "one", {"STORMO_RENDEZVOUS=file:" + file}), "hosts 2\n");
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("rendezvous")));
  }
  EXPECT_FALSE(fs::exists(folder_ / "bulletin" / "ticket"));
}

TEST_F(World, OfThreadsOfOneProcess) {
  const auto process = start(0, 3, "threads");
  EXPECT_EQ(process->wait(), 0) << process->err();
  EXPECT_EQ(count(process->out(), "hosts 3\n"), 3);
}

TEST_F(World, ARankThatNeverComesIsNamed) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (const int rank : {0, 1, 3}) {
    ranks.push_back(start(rank, 4, "one", {"STORMO_JOIN_TIMEOUT=2s"}));
  }
  expect_refused(ranks, "rank 2 of 4 has not joined within 2 s; did it start?");
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(World, WithoutRankZeroItIsNamed) {
  std::vector<std::unique_ptr<Process>> ranks;
  ranks.push_back(start(1, 2, "one", {"STORMO_JOIN_TIMEOUT=1s"}));
  expect_refused(ranks, "rank 0 of 2 has not joined within 1 s; did it start?");
}

TEST_F(World, TwoProcessesWithOneNumberAreTold) {
  std::vector<std::unique_ptr<Process>> ones;
  ones.push_back(start(1, 2, "one", {"STORMO_HOST=first"}));
  ones.push_back(start(1, 2, "one", {"STORMO_HOST=second"}));
  while (left().size() < 2) ::poll(nullptr, 0, 1);
  const auto zero = start(0, 2, "one");
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  const int codes[] = {ones[0]->wait(), ones[1]->wait()};
  EXPECT_EQ(codes[0] + codes[1], 1) << ones[0]->err() << ones[1]->err();
  EXPECT_THAT(ones[0]->err() + ones[1]->err(),
              AllOf(HasSubstr("two processes claim to be rank 1: pid"), HasSubstr("on first"),
                    HasSubstr("on second")));
}

// Before the job's own Store is there, nobody watches: the others wait for the timeout.
TEST_F(World, APeerThatDiesWhileItJoinsIsNamed) {
  for (const std::string use : {"1", "2"}) {  // before and after it has said who it is
    fs::remove_all(folder_ / "bulletin");
    std::vector<std::unique_ptr<Process>> ranks;
    const auto dies = start(1, 3, "dies:" + use);
    for (const int rank : {0, 2}) {
      ranks.push_back(start(rank, 3, "one", {"STORMO_JOIN_TIMEOUT=3s"}));
    }
    EXPECT_EQ(dies->wait(), 128 + SIGKILL);
    expect_refused(ranks, "rank 1 of 3 has not joined within 3 s");
  }
}

// They have proved to be on its host, and see the end of the connection.
TEST_F(World, WhenRankZeroDiesBeforeItsStoreTheOthersAreToldAtOnce) {
  const auto begin = std::chrono::steady_clock::now();
  std::vector<std::unique_ptr<Process>> ranks;
  const auto dies = start(0, 2, "dies:4");  // its claims, those of both, and all of them
  ranks.push_back(start(1, 2, "one"));
  EXPECT_EQ(dies->wait(), 128 + SIGKILL);
  expect_refused(ranks, "rank 0 ended before the job's store had started");
  EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(60));
}

TEST_F(World, AHundredTimesTakesNoMoreThanOnce) {
  expect_good(start_all(2, "many"), "same: ", std::chrono::seconds(100));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(World, AHundredTimesWithOtherMembersTakesNoMoreThanOnce) {
  expect_good(start_all(3, "others"), "same: ", std::chrono::seconds(100));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(World, TwoAtOnce) { expect_good(start_all(2, "two"), ""); }

/// Ranks 0 and 1 on one host, 2 on another.
class WorldOfTwoHosts : public World {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << "root: " << hosts_.problem();
  }
  std::vector<std::unique_ptr<Process>> start_on(const std::vector<int>& hosts,
                                                 const std::vector<Words>& variables,
                                                 const std::string& mode = "one") const {
    std::vector<std::unique_ptr<Process>> ranks;
    for (int rank = 0; rank < static_cast<int>(hosts.size()); ++rank) {
      const auto r = static_cast<std::size_t>(rank);
      ranks.push_back(
          start(rank, static_cast<int>(hosts.size()), mode, variables[r], in_host(hosts[r])));
    }
    return ranks;
  }
  /// One mount namespace for all of a host: "ip netns exec" would make one for each process.
  Words in_host(int host) const {
    return {"/usr/bin/nsenter", "--net=/run/netns/" + hosts_.host(host)};
  }
  const MadeHosts hosts_{2};
};

TEST_F(WorldOfTwoHosts, NeedsAFileOrTrustAndSaysSo) {
  const auto ranks = start_on({0, 0, 1}, {{}, {}, {}});
  for (const auto& rank : ranks) {
    EXPECT_EQ(rank->wait(), 1);
    EXPECT_THAT(rank->err(),
                AllOf(HasSubstr("the ranks are on 2 hosts (rank 2 is not on the host of rank 0: "
                                "their network namespaces differ)"),
                      HasSubstr("STORMO_RENDEZVOUS=file:PATH"), HasSubstr("STORMO_TRUST_STORE=1")));
  }
  EXPECT_FALSE(fs::exists(folder_ / "bulletin" / "ticket"));
  EXPECT_THAT(left(), IsEmpty());
}

TEST_F(WorldOfTwoHosts, WithTrustTheSecretIsInTheStore) {
  const Words trust{"STORMO_TRUST_STORE=1"};
  expect_good(start_on({0, 0, 1}, {trust, trust, trust}), "hosts 2 1\n");
  EXPECT_TRUE(fs::exists(folder_ / "bulletin" / "ticket"));
}

TEST_F(WorldOfTwoHosts, WithAFileItIsNot) {
  const Words file{"STORMO_RENDEZVOUS=file:" + (folder_ / "shared").string()};
  expect_good(start_on({0, 0, 1}, {file, file, file}), "hosts 2 1\n");
  EXPECT_FALSE(fs::exists(folder_ / "bulletin" / "ticket"));
  for (const auto& entry : fs::directory_iterator(folder_)) {
    EXPECT_THAT(entry.path().string(), Not(HasSubstr("shared"))) << "removed when all have read it";
  }
}

TEST_F(WorldOfTwoHosts, AHundredTimesTakesNoMoreThanOnce) {
  const Words trust{"STORMO_TRUST_STORE=1"};
  expect_good(start_on({0, 0, 1}, {trust, trust, trust}, "many"),
              "same: ", std::chrono::seconds(100));
}

// The same path for all of them, one after the other and at once.
TEST_F(WorldOfTwoHosts, OneFileServesManyWorlds) {
  const Words file{"STORMO_RENDEZVOUS=file:" + (folder_ / "shared").string()};
  expect_good(start_on({0, 1}, {file, file}, "two"), "");
}

TEST_F(WorldOfTwoHosts, OneThatDoesNotTrustTheStoreIsNotOverruled) {
  const Words trust{"STORMO_TRUST_STORE=1"};
  expect_refused(start_on({0, 0, 1}, {trust, trust, {}}), "so rank 2 takes no secret from it");
}

TEST_F(WorldOfTwoHosts, RanksThatTakeTheSecretInDifferentWaysAreTold) {
  const Words trust{"STORMO_TRUST_STORE=1"};
  expect_refused(start_on({0, 1}, {trust, {"STORMO_RENDEZVOUS=file:/nowhere"}}),
                 "rank 0 has STORMO_TRUST_STORE, rank 1 has STORMO_RENDEZVOUS");
}

TEST_F(WorldOfTwoHosts, RanksThatAreNotNumberedHostByHostAreTold) {
  const Words trust{"STORMO_TRUST_STORE=1"};
  expect_refused(start_on({0, 1, 0}, {trust, trust, trust}), "rank 2 is on the host of rank 0 (");
}

// No TCP is needed on one host.
TEST_F(WorldOfTwoHosts, WithoutAnyNetworkOneHostForms) {
  const Outcome down = run_to_end({"/sbin/ip", "-n", hosts_.host(1), "link", "set", "lo", "down"});
  ASSERT_EQ(down.status, 0) << down.err;
  run_to_end({"/sbin/ip", "-n", hosts_.host(1), "link", "set", "eth0", "down"});
  expect_good(start_on({1, 1}, {{}, {}}), "hosts 2\n");
}

}  // namespace
}  // namespace stormo::testing
