#include <stormo/train/elastic/membership_log.h>

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/temporary_folder.h>
#include <stormo/train/elastic/membership_replay.h>

namespace stormo::train {
namespace {

using protocol::ElasticRecord;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

class MembershipLog : public ::testing::Test {
 protected:
  void log(const ElasticRecord& record, bool begins) const {
    throw_if_error(log_membership(path, record, 1, begins));
  }
  void write(const std::string& text) const { std::ofstream(path) << text; }
  std::string refusal() const { return read_membership(path).status().message(); }

  static ElasticRecord epoch(Epoch number, std::uint64_t step) {
    return {.epoch = number,
            .members = {{.id = {"a/0", 1}}, {.id = {"a/1", number}}},
            .base_step = step,
            .state_hash = number == 1 ? 0 : 0xfedcba9876543210,
            .plan_hash = 77,
            .donors = {"a/0"}};
  }

  TemporaryFolder folder = TemporaryFolder::create("membership-log").take_or_throw();
  std::string path = membership_log_in(folder.path().string() + "/run");
};

TEST_F(MembershipLog, HasTheRecordsOfARun) {
  log(epoch(1, 0), true);
  log(epoch(2, 7), false);
  EXPECT_THAT(read_membership(path).take_or_throw(), ElementsAre(epoch(1, 0), epoch(2, 7)));
}

TEST_F(MembershipLog, BeginsAnewWithARun) {
  log(epoch(1, 0), true);
  log(epoch(1, 0), true);
  EXPECT_THAT(read_membership(path).take_or_throw(), ElementsAre(epoch(1, 0)));
}

TEST_F(MembershipLog, IsReadFromWhereTheRunWasResumed) {
  log(epoch(1, 0), true);
  log(epoch(2, 7), false);
  log(epoch(1, 5), false);
  log(epoch(2, 9), false);
  EXPECT_THAT(read_membership(path).take_or_throw(), ElementsAre(epoch(1, 5), epoch(2, 9)));
}

TEST_F(MembershipLog, WhatIsNoneIsRefusedByLine) {
  EXPECT_THAT(refusal(), HasSubstr("membership.jsonl"));
  log(epoch(1, 0), true);
  std::string line;
  std::getline(std::ifstream(path), line);
  for (const std::string& wrong : std::vector<std::string>{
           "", "7", "{}", line.substr(1), R"({"epoch":2,"members":[{}],"donors":[]})",
           R"({"epoch":2,"members":[{"name":"a/0"}],"donors":["a/1"]})"}) {
    write(line + "\n" + wrong + "\n" + line + "\n");
    EXPECT_THAT(refusal(), HasSubstr("line 2 is no record of members")) << wrong;
  }
  write("");
  EXPECT_THAT(refusal(), HasSubstr("has no record of members"));
}

TEST_F(MembershipLog, StepsDoNotGoBack) {
  log(epoch(1, 4), true);
  log(epoch(2, 3), false);
  EXPECT_THAT(refusal(), HasSubstr("line 2"));
}

TEST_F(MembershipLog, IsReplayedByAsManyRanks) {
  EXPECT_FALSE(is_membership_log("quorum://a:1"));
  log(epoch(1, 0), true);
  EXPECT_TRUE(open_membership_log("log://" + path, 2).ok());
  EXPECT_THAT(open_membership_log("log://" + path, 3).status().message(),
              HasSubstr("began with 2 ranks, and this one has 3"));
}

}  // namespace
}  // namespace stormo::train
