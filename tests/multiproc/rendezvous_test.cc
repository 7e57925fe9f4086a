// Ranks on two hosts that a foreign launcher has started, and that meet by STORMO_RENDEZVOUS: a
// file on a file system that both share carries address and secret.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <filesystem>
#include <fstream>
#include <memory>

#include <stormo/base/clock.h>
#include <stormo/base/temporary_folder.h>

#include "made_hosts.h"
#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

using namespace std::chrono_literals;
using ::testing::AllOf;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

/// Two ranks on each host, with the environment that torchrun gives them.
class Rendezvous : public ::testing::TestWithParam<bool> {
 protected:
  void SetUp() override {
    if (!hosts_.problem().empty()) GTEST_SKIP() << "root: " << hosts_.problem();
  }
  std::string path() const { return folder_.path() / "job7"; }
  std::unique_ptr<Process> start(int rank, Words variables = {}) const {
    const std::string local = std::to_string(rank % 2), host = std::to_string(rank / 2);
    Words words{"/usr/bin/env",
                "RANK=" + std::to_string(rank),
                "WORLD_SIZE=4",
                "LOCAL_RANK=" + local,
                "LOCAL_WORLD_SIZE=2",
                "GROUP_RANK=" + host,
                "MASTER_ADDR=" + hosts_.host(0),
                "MASTER_PORT=29500",
                "STORMO_RENDEZVOUS=file:" + path()};
    words.insert(words.end(), variables.begin(), variables.end());
    for (const char* word : {"ip", "netns", "exec"}) words.emplace_back(word);
    words.push_back(hosts_.host(rank / 2));
    words.emplace_back(built("job_worker"));
    words.emplace_back("good");
    return std::make_unique<Process>(words);
  }
  void write(const std::string& text, mode_t mode) const {
    std::ofstream(path()) << text;
    ASSERT_EQ(::chmod(path().c_str(), mode), 0);
  }
  /// What rank 0 wrote for a job that is over: an address at which nobody is, and its secret.
  std::string former_job() const {
    return "stormo-rendezvous 1\ntcp:127.0.0.1:9\n" + std::string(64, 'a') + "\n";
  }

  const MadeHosts hosts_{2, GetParam() ? Words{"--v6"} : Words{}};
  const TemporaryFolder folder_ = TemporaryFolder::create("rendezvous-test").take_or_throw();
};

TEST_P(Rendezvous, FourRanksMeetAndNothingIsLeft) {
  std::vector<std::unique_ptr<Process>> ranks;
  for (const int rank : {3, 0, 2, 1}) ranks.push_back(start(rank));
  for (const auto& rank : ranks) EXPECT_EQ(rank->wait(), 0) << rank->err();
  EXPECT_TRUE(std::filesystem::is_empty(folder_.path())) << "the secret is gone with the job";
}

TEST_P(Rendezvous, WhileItLiesThereOnlyItsUserMayReadIt) {
  const auto first = start(0);  // waits for the others
  struct stat info {};
  const Deadline by = Deadline::after(kGenerous);
  while (::stat(path().c_str(), &info) != 0) ASSERT_FALSE(by.expired()) << first->err();
  EXPECT_EQ(info.st_mode & 0777, 0600u);
  std::ifstream in(path());
  std::string magic, address, secret;
  in >> magic >> magic >> address >> secret;
  EXPECT_THAT(address, ::testing::StartsWith("tcp:"));
  EXPECT_EQ(secret.size(), 64u);
  const std::string seen = read_proc("/proc/" + std::to_string(first->pid()) + "/environ") +
                           read_proc("/proc/" + std::to_string(first->pid()) + "/cmdline");
  EXPECT_EQ(seen.find(secret), std::string::npos);
}

TEST_P(Rendezvous, AFileThatOthersMayReadIsRefused) {
  write(former_job(), 0644);
  const auto rank = start(1);
  EXPECT_NE(rank->wait(), 0);
  EXPECT_THAT(rank->err(), AllOf(HasSubstr(path()), HasSubstr("must be yours alone (mode 0600)")));
}

TEST_P(Rendezvous, AFileOfAFormerJobIsNamedOnEveryRank) {
  write(former_job(), 0600);
  const auto first = start(0), second = start(1, {"STORMO_JOIN_TIMEOUT=1s"});
  EXPECT_NE(first->wait(), 0);
  EXPECT_THAT(first->err(), AllOf(HasSubstr(path()), HasSubstr("exists already: remove it")));
  EXPECT_NE(second->wait(), 0);
  EXPECT_THAT(second->err(), AllOf(HasSubstr(path()), HasSubstr("of an earlier job")));
  EXPECT_TRUE(std::filesystem::exists(path())) << "not ours to remove";
}

TEST_P(Rendezvous, AFileThatIsNoneIsNamed) {
  write("hello\n", 0600);
  const auto rank = start(1);
  EXPECT_NE(rank->wait(), 0);
  EXPECT_THAT(rank->err(), HasSubstr("is not a rendezvous file; remove it"));
}

TEST_P(Rendezvous, APipeInItsPlaceIsRefusedAtOnce) {
  ASSERT_EQ(::mkfifo(path().c_str(), 0600), 0);
  const auto rank = start(1);
  EXPECT_NE(rank->wait(), 0);
  EXPECT_THAT(rank->err(), AllOf(HasSubstr(path()), HasSubstr("is no regular file; remove it")));
}

TEST_P(Rendezvous, AFileThatNeverComesIsNamed) {
  const auto rank = start(2, {"STORMO_JOIN_TIMEOUT=1s"});
  EXPECT_NE(rank->wait(), 0);
  EXPECT_THAT(rank->err(), AllOf(HasSubstr("rank 0 has not written the rendezvous file"),
                                 HasSubstr(path()), HasSubstr("share")));
}

INSTANTIATE_TEST_SUITE_P(Addresses, Rendezvous, ::testing::Values(false, true),
                         [](const auto& i) { return i.param ? "V6" : "V4"; });

}  // namespace
}  // namespace stormo::testing
