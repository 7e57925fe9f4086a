// What ranks say of themselves when they join, and what a rank makes of what others say.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <memory>
#include <string>

#include <stormo/comm/communicator.h>
#include <stormo/comm/job/join_record.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/transport/store/store.h>

namespace stormo::comm {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

JoinRecord record_of_rank_0() {
  return {.version = "1.2 (protocol 3)",
          .process = {"rank 0 (host a, pid 7)", 7, "boot pid:[1]"},
          .cross_rank = 0,
          .local_rank = 0,
          .local_size = 2,
          .checksum = true,
          .host_ticket = "name 0123",
          .selection = "selection v1\nall_reduce one_host ranks=0 bytes=99\n"};
}

TEST(JoinRecord, IsReadBack) {
  JoinRecord record = record_of_rank_0();
  EXPECT_EQ(parse_join_record(record.to_text()).take_or_throw(), record);
  record.selection.clear();
  record.checksum = false;
  record.host_ticket.clear();
  EXPECT_EQ(parse_join_record(record.to_text()).take_or_throw(), record);
  EXPECT_EQ(version_in(record.to_text()), "1.2 (protocol 3)");
}

TEST(JoinRecord, KeepsItsLines) {
  JoinRecord record = record_of_rank_0();
  record.process.identity = "rank 0 (host a\nb, pid 7)";
  const auto back = parse_join_record(record.to_text());
  ASSERT_TRUE(back.ok()) << back.status().to_string();
  EXPECT_EQ(back->process.identity, "rank 0 (host a\\nb, pid 7)");
  EXPECT_EQ(back->selection, record.selection);
}

TEST(JoinRecord, ThatIsNoneIsRefused) {
  for (const std::string text : {"", "1.2 (protocol 3)", "1.2\nrank 0\n", "1.2\nrank 0\n0 0 2 1\n",
                                 "1.2\nrank 0\n0 0 x 1 7\n", "1.2\nrank 0\n0 0 2 1 7 9\n"}) {
    EXPECT_EQ(parse_join_record(text).status().code(), Code::kCorrupt) << text;
  }
}

/// A Store in which another rank has posted something; rank 1 of 2 joins.
class Joining : public ::testing::Test {
 protected:
  Status join_as_rank_1(const std::string& version = "1.2 (protocol 3)") const {
    transport::Rendezvous r;
    r.rank = 1;
    r.size = r.local_size = 2;
    r.local_rank = 1;
    r.host = "b";
    r.store = server_->address();
    r.secret = secret_;
    r.join_timeout = std::chrono::hours(1);
    return join(r, version).status();
  }
  const transport::Secret secret_ = transport::Secret::random();
  const std::unique_ptr<transport::StoreServer> server_ =
      transport::StoreServer::start({.secret = secret_}).take_or_throw();
};

TEST_F(Joining, AnotherVersionIsNamed) {
  server_->set("version/0", record_of_rank_0().to_text());
  const Status refused = join_as_rank_1("1.3 (protocol 3)");
  EXPECT_EQ(refused.code(), Code::kRefused);
  EXPECT_THAT(refused.message(), HasSubstr("rank 0 runs stormo 1.2 (protocol 3), rank 1 (host b) "
                                           "runs 1.3 (protocol 3): install one version"));
}

// Versions that knew no records have posted the version alone.
TEST_F(Joining, AnOldVersionIsNamed) {
  server_->set("version/0", "1.1 (protocol 3)");
  EXPECT_THAT(join_as_rank_1().message(), HasSubstr("rank 0 runs stormo 1.1 (protocol 3), rank 1"));
}

TEST_F(Joining, AnotherProcessWithItsNumberIsNamed) {
  JoinRecord other = record_of_rank_0();
  other.process.identity = "rank 1 (host c, pid 9)";
  server_->set("version/1", other.to_text());
  EXPECT_THAT(join_as_rank_1().message(),
              HasSubstr("two processes claim to be rank 1: rank 1 (host c, pid 9) and rank 1 "
                        "(host b, pid "));
}

TEST_F(Joining, ARankOutOfOrderIsNamed) {
  JoinRecord first = record_of_rank_0();
  first.selection.clear();
  first.local_rank = 1;
  server_->set("version/0", first.to_text());
  EXPECT_THAT(join_as_rank_1().message(),
              AllOf(HasSubstr("rank 0 says it is local rank 1 of 2 on host 0"),
                    HasSubstr("numbered host by host")));
}

// Long before the join timeout.
TEST_F(Joining, TheFailureOfAnotherEndsTheWait) {
  server_->set("failure", encode_failure(invalid_argument("rank 0 cannot read its rules")));
  EXPECT_THAT(join_as_rank_1().message(), HasSubstr("rank 0 cannot read its rules"));
}

}  // namespace
}  // namespace stormo::comm
