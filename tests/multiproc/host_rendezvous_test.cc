// Ranks that a foreign launcher starts, which hands over no secret: they meet through a file that
// only their user can read, and nobody else can be in the way.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/stat.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/temporary_folder.h>

#include "process.h"
#include "tests/built.h"

namespace stormo::testing {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;
using Words = std::vector<std::string>;

class HostRendezvous : public ::testing::Test {
 protected:
  /// What torchrun sets for one of two ranks; `more` comes last and wins.
  Words variables(int rank, const Words& more = {}) const {
    const std::string r = std::to_string(rank);
    Words out{"RANK=" + r,
              "LOCAL_RANK=" + r,
              "WORLD_SIZE=2",
              "LOCAL_WORLD_SIZE=2",
              "MASTER_ADDR=127.0.0.1",
              "MASTER_PORT=29500",
              "TORCHELASTIC_RUN_ID=host_rendezvous_test",
              "XDG_RUNTIME_DIR=" + folder_.string(),
              "HOME=" + folder_.string(),
              "STORMO_JOIN_TIMEOUT=20s"};
    out.insert(out.end(), more.begin(), more.end());
    return out;
  }
  std::unique_ptr<Process> start(int rank, const std::string& mode, const Words& more = {}) const {
    return std::make_unique<Process>(Words{built("job_worker"), mode}, variables(rank, more));
  }
  void expect_a_good_job(const Words& more = {}) {
    const auto one = start(1, "good", more);  // first: it has to wait for rank 0
    const auto zero = start(0, "good", more);
    EXPECT_EQ(zero->wait(), 0) << zero->err();
    EXPECT_EQ(one->wait(), 0) << one->err();
  }
  fs::path rendezvous_folder() const { return folder_ / "stormo"; }
  std::vector<std::string> left() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(rendezvous_folder())) {
      names.push_back(entry.path().filename());
    }
    return names;
  }
  /// The file and the socket of a rank 0 that waits for others.
  bool wait_for_file() const {
    for (const auto by = std::chrono::steady_clock::now() + kGenerous;
         std::chrono::steady_clock::now() < by;) {
      if (!fs::exists(rendezvous_folder())) continue;
      const std::vector<std::string> names = left();
      const bool staged = std::any_of(names.begin(), names.end(),
                                      [](const auto& name) { return name.ends_with(".new"); });
      if (names.size() == 2 && !staged) return true;
    }
    return false;
  }

  const TemporaryFolder temporary_ =
      TemporaryFolder::create("host-rendezvous-test").take_or_throw();
  const fs::path folder_ = temporary_.path();
};

TEST_F(HostRendezvous, IsInAFolderOfOneUserAndLeavesNothing) {
  expect_a_good_job();
  struct stat info {};
  ASSERT_EQ(::stat(rendezvous_folder().c_str(), &info), 0);
  EXPECT_EQ(info.st_mode & 07777, 0700u);
  EXPECT_THAT(left(), ::testing::IsEmpty());
}

TEST_F(HostRendezvous, WhatAKilledJobLeftIsReplaced) {
  {
    const auto zero = start(0, "good");
    ASSERT_TRUE(wait_for_file()) << zero->err();
    zero->signal(SIGKILL);
    EXPECT_EQ(zero->wait(), 128 + SIGKILL);
  }
  ASSERT_EQ(left().size(), 2u) << "a file that names a dead socket";
  expect_a_good_job();
  EXPECT_THAT(left(), ::testing::IsEmpty());
}

TEST_F(HostRendezvous, WhatWasKilledBeforeItHadItsNameIsRemoved) {
  fs::create_directory(rendezvous_folder());
  fs::permissions(rendezvous_folder(), fs::perms::owner_all);
  for (const char* name : {"other.1234abcd", "other.1234abcd.new", "late.00000000.new"}) {
    std::ofstream(rendezvous_folder() / name) << "unfinished";
  }
  fs::last_write_time(rendezvous_folder() / "other.1234abcd.new",
                      fs::file_time_type::clock::now() - std::chrono::minutes(2));
  expect_a_good_job();
  EXPECT_EQ(left(), Words{"late.00000000.new"}) << "its owner may be about to lock it";
}

TEST_F(HostRendezvous, ASecondJobOfTheSameNameIsToldSo) {
  const auto first = start(0, "good");
  ASSERT_TRUE(wait_for_file()) << first->err();
  const auto second = start(0, "good");
  EXPECT_NE(second->wait(), 0);
  EXPECT_THAT(second->err(), HasSubstr("another job holds"));
  const auto one = start(1, "good");
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_EQ(first->wait(), 0) << first->err();
}

TEST_F(HostRendezvous, AFolderThatOthersMayEnterIsNotUsed) {
  fs::create_directory(rendezvous_folder());
  fs::permissions(rendezvous_folder(), fs::perms(0755));
  const auto zero = start(0, "good");
  const auto one = start(1, "good");
  EXPECT_EQ(zero->wait(), 0) << zero->err();  // in the next folder, that of /tmp
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_THAT(left(), ::testing::IsEmpty());
}

TEST_F(HostRendezvous, ALinkInTheFoldersPlaceIsNotFollowed) {
  const fs::path elsewhere = folder_ / "elsewhere";
  fs::create_directory(elsewhere);
  fs::permissions(elsewhere, fs::perms(0700));
  fs::create_symlink(elsewhere, rendezvous_folder());
  expect_a_good_job();
  EXPECT_TRUE(fs::is_empty(elsewhere));
}

TEST_F(HostRendezvous, ARankWithoutTheSecretOfItsLauncherIsToldSo) {
  Process rank({built("job_worker"), "good"},
               {"STORMO_RANK=0", "STORMO_WORLD_SIZE=2", "STORMO_STORE=unix:stormo-nobody"});
  EXPECT_EQ(rank.wait(), 1);
  EXPECT_THAT(rank.err(), HasSubstr("this rank has none (STORMO_SECRET_FD)"));
}

TEST_F(HostRendezvous, BetweenHostsARendezvousFileBringsTheSecret) {
  const fs::path file = folder_ / "rendezvous";
  const auto host = [&](const char* index) {
    return Words{"LOCAL_WORLD_SIZE=1", "LOCAL_RANK=0", std::string("GROUP_RANK=") + index,
                 "STORMO_INTERFACE=lo", "STORMO_RENDEZVOUS=file:" + file.string()};
  };
  const auto zero = start(0, "good", host("0"));
  const auto one = start(1, "good", host("1"));
  EXPECT_EQ(zero->wait(), 0) << zero->err();
  EXPECT_EQ(one->wait(), 0) << one->err();
  EXPECT_FALSE(fs::exists(file)) << "removed when all have read it";
}

}  // namespace
}  // namespace stormo::testing
