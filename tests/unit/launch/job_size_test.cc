// What a running job can be asked for, and how it is asked.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>

#include <filesystem>

#include <stormo/base/temporary_folder.h>
#include <stormo/launch/job/job_size.h>
#include <stormo/launch/messages/job_control.h>

namespace stormo::launch {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

/// Two ranks on a, one on b, which have slots for `slots` ranks.
JobPlan plan_of(std::vector<int> slots, Elastic limits = {}) {
  JobPlan plan{.ranks = 3, .may_be_lost = {.count = 3}};
  for (const auto& [host, ranks] : {std::pair{"a", 2}, std::pair{"b", 1}}) {
    HostJob& job = plan.hosts.emplace_back();
    job.host = host;
    job.local_size = ranks;
    job.cross_rank = static_cast<int>(plan.hosts.size()) - 1;
  }
  plan.slots = std::move(slots);
  plan.elastic = std::move(limits);
  return plan;
}

protocol::Supervisor supervisor_of(const JobPlan& plan) {
  protocol::Supervisor supervisor(places_of(plan), {.replaces = true});
  for (Rank r = 0; r < plan.ranks; ++r) supervisor.handle(protocol::Started{r, 100 + r}, {});
  return supervisor;
}

std::vector<std::string> hosts_of(const Result<protocol::SizeAsked>& asked) {
  std::vector<std::string> hosts;
  for (const protocol::RankPlace& place : asked->places) hosts.push_back(place.host);
  return hosts;
}

TEST(JobSizes, RanksHaveSeatsHostByHost) {
  EXPECT_THAT(seats_of(plan_of({2, 1})), ElementsAre(Seat{0, 0}, Seat{0, 1}, Seat{1, 0}));
}

TEST(JobSizes, NewRanksGetTheFreeSlotsInTheOrderOfHosts) {
  const JobPlan plan = plan_of({3, 3});
  const protocol::Supervisor supervisor = supervisor_of(plan);
  EXPECT_THAT(hosts_of(size_asked(2, plan, supervisor)), IsEmpty());
  EXPECT_THAT(hosts_of(size_asked(5, plan, supervisor)), ElementsAre("a", "b"));
  const auto all = size_asked(6, plan, supervisor);
  EXPECT_THAT(hosts_of(all), ElementsAre("a", "b", "b"));
  EXPECT_EQ(all->places[1].cross_rank, 1);
  EXPECT_TRUE(all->places[1].may_be_lost);
  EXPECT_EQ(all->places[1].stands_in, places_of(plan).front().stands_in);
  const auto more = size_asked(7, plan, supervisor);
  EXPECT_EQ(more.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(more.status().message(), HasSubstr("have 6 slots"));
}

TEST(JobSizes, WhoHasLeftNeedsNoNewPlaceAndAHostThatIsGoneHasNone) {
  const JobPlan plan = plan_of({2, 2});
  protocol::Supervisor supervisor = supervisor_of(plan);
  supervisor.handle(protocol::SizeAsked{.ranks = 2}, {});
  supervisor.handle(protocol::Exited{2, 0}, {});
  EXPECT_THAT(hosts_of(size_asked(3, plan, supervisor)), IsEmpty());
  EXPECT_THAT(hosts_of(size_asked(4, plan, supervisor)), ElementsAre("b"));
  supervisor.handle(protocol::HostLeaves{1}, {});
  const auto more = size_asked(3, plan, supervisor);
  EXPECT_THAT(more.status().message(), HasSubstr("have 2 slots"));
}

TEST(JobSizes, NoNewRankHasThePlaceOfALostOneInAPipeline) {
  const JobPlan plan = plan_of({3, 3}, {.adds_places = false});
  protocol::Supervisor supervisor = supervisor_of(plan);
  supervisor.handle(protocol::SizeAsked{.ranks = 2}, {});
  supervisor.handle(protocol::Exited{2, 0}, {});
  EXPECT_THAT(hosts_of(size_asked(3, plan, supervisor)), IsEmpty());
  supervisor.handle(protocol::HostLeaves{1}, {});
  EXPECT_THAT(size_asked(3, plan, supervisor).status().message(),
              HasSubstr("at most 2: each rank needs a sample, a logical shard, or its place"));
}

TEST(JobSizes, LimitsAreToldAtOnce) {
  const JobPlan plan = plan_of({9, 9}, {.min_ranks = 2, .max_ranks = 8});
  const protocol::Supervisor supervisor = supervisor_of(plan);
  const auto why = [&](int ranks) {
    return size_asked(ranks, plan, supervisor).status().message();
  };
  EXPECT_THAT(why(-1), HasSubstr("at least 1"));
  EXPECT_THAT(why(1), HasSubstr("elastic.min_ranks=2"));
  EXPECT_THAT(
      why(9),
      HasSubstr(
          "at most 8: each rank needs a sample, a logical shard, or its place in a pipeline"));
  EXPECT_EQ(why(8), "");
  protocol::Supervisor ending = supervisor_of(plan);
  ending.handle(protocol::Exited{0, 0}, {});
  EXPECT_THAT(size_asked(2, plan, ending).status().message(), HasSubstr("about to end"));
}

TEST(JobSizes, TheSizeIsReachedWhenTheseRanksAreMembers) {
  membership::EpochRecord record{.job = "j", .epoch = 4};
  for (const char* who : {"a/0", "b/0"}) record.members.push_back({.identity = who});
  const auto reached = [&](const std::vector<std::string>& ranks) {
    JobSize size;
    compare(record, ranks, size);
    EXPECT_EQ(size.epoch, 4u);
    EXPECT_EQ(size.members, 2);
    return size.is_reached;
  };
  EXPECT_TRUE(reached({"a/0", "b/0"}));
  EXPECT_FALSE(reached({"a/0", "a/1"})) << "one that leaves, and one that comes";
  EXPECT_FALSE(reached({"a/0"}));
  EXPECT_FALSE(reached({"a/0", "a/1", "b/0"}));
}

class JobControlTest : public ::testing::Test {
 protected:
  std::string path() const { return folder_.path() / "socket"; }
  std::unique_ptr<JobControl> control() {
    return JobControl::start(
               path(),
               [](const SizeRequest& request) {
                 return JobSize{.command = "train", .ranks = request.ranks, .processes = {7, 8}};
               })
        .take_or_throw();
  }
  static Deadline soon() { return Deadline::after(std::chrono::seconds(20)); }
  TemporaryFolder folder_ = TemporaryFolder::create("job-control-").take_or_throw();
};

TEST_F(JobControlTest, AnswersOneAfterTheOther) {
  const auto control = this->control();
  for (const int ranks : {0, 3, 5}) {
    const Result<JobSize> size = ask_job(path(), {.ranks = ranks}, soon());
    ASSERT_TRUE(size.ok()) << size.status().message();
    EXPECT_EQ(*size, (JobSize{.command = "train", .ranks = ranks, .processes = {7, 8}}));
  }
}

TEST_F(JobControlTest, WhatOneSaysThatIsNoRequestChangesNothing) {
  const auto control = this->control();
  for (const std::string& bytes : {std::string("GET / HTTP/1.1\r\n\r\n"), std::string(4, '\xff'),
                                   std::string("\x03\0\0\0abc", 7), std::string()}) {
    const auto address = transport::unix_address(path()).take_or_throw();
    const auto connection = transport::start_connect(address).take_or_throw();
    ASSERT_EQ(::send(connection.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
    ::shutdown(connection.get(), SHUT_WR);
    EXPECT_TRUE(ask_job(path(), {.ranks = 2}, soon()).ok());
  }
}

TEST_F(JobControlTest, LeavesNothingAndTakesTheNameOfAKilledOne) {
  control();
  EXPECT_FALSE(std::filesystem::exists(path()));
  EXPECT_EQ(ask_job(path(), {}, soon()).status().code(), Code::kNotFound);
  const auto left = transport::listen_unix(path()).take_or_throw();
  const auto control = this->control();
  EXPECT_TRUE(ask_job(path(), {}, soon()).ok());
}

}  // namespace
}  // namespace stormo::launch
