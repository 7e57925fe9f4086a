// What a rank learns of the end of its job, and of ranks that leave it.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stormo/comm/watch/job_watch.h>
#include <stormo/transport/store/store_of_rank.h>

#include <chrono>

#include "tests/unit/comm/wrapped_store.h"

namespace stormo::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using transport::StoreClient;
using transport::StoreServer;

Deadline soon() { return Deadline::after(15s); }

/// A rank of three, with what it does in the world and its messages.
struct Watched {
  Watched(std::unique_ptr<StoreClient> store, Rank rank, bool rank_0_serves = false) {
    world = activities->add("", rank, 3);
    messages = activities->add("messages", rank, 3);
    watch = JobWatch::start(std::move(store), health,
                            {.rank = rank,
                             .size = 3,
                             .identity = "rank " + std::to_string(rank) + " (test)",
                             .activities = activities,
                             .rank_0_serves = rank_0_serves},
                            soon())
                .take_or_throw();
  }
  ~Watched() { watch->end(); }
  Status report(const Operation& operation, Code code = Code::kPeerLost) {
    const bool message = operation.sequence == 0;
    return watch->report({code, "rank 0 (test): it closed the connection"},
                         {.group = message ? "messages" : "", .size = 3, .operation = operation});
  }
  bool fails(Duration within = 15s) const {
    const Deadline by = Deadline::after(within);
    while (!health->failed() && !by.expired()) ::poll(nullptr, 0, 1);
    return health->failed();
  }
  std::shared_ptr<transport::Health> health = std::make_shared<transport::Health>();
  std::shared_ptr<Activities> activities = std::make_shared<Activities>();
  std::shared_ptr<Activity> world, messages;
  std::unique_ptr<JobWatch> watch;
};

class JobWatchTest : public ::testing::Test {
 protected:
  std::unique_ptr<StoreClient> client() const {
    return StoreClient::connect({server_->address(), {}}, soon()).take_or_throw();
  }
  std::unique_ptr<StoreServer> server_ = StoreServer::start({}).take_or_throw();
};

Operation collective(std::uint64_t sequence) {
  return {.sequence = sequence, .kind = OperationKind::kBarrier};
}
Operation receive(Rank from) { return {.root = from, .kind = OperationKind::kReceive}; }

// Rank 0 serves the Store, fails, and ends. Its end is all that the others meet.
TEST_F(JobWatchTest, TheCauseThatWasToldIsKeptWhenTheStoreIsGone) {
  for (const Code code : {Code::kPeerLost, Code::kCancelled, Code::kDeadlineExceeded}) {
    server_ = StoreServer::start({}).take_or_throw();
    Watched one(client(), 1);
    server_->set("failure", "invalid argument: rank 0 has no data");
    ASSERT_TRUE(one.fails());
    server_.reset();
    EXPECT_EQ(one.report(collective(1), code).to_string(), "invalid argument: rank 0 has no data");
  }
}

// The session may be lost before this rank reports: that is no cause.
TEST_F(JobWatchTest, AStoreThatIsGoneIsNotTheCause) {
  Watched one(client(), 1);
  server_.reset();
  ASSERT_TRUE(one.fails());
  EXPECT_THAT(one.report(collective(1)).to_string(), HasSubstr("rank 0 (test): it closed"));
}

// Unless it is gone with the rank that serves it. What a rank meets first is a matter of chance, as
// is whether its session is lost before it reports.
TEST_F(JobWatchTest, TheRankThatServedAStoreThatIsGoneIsTheCauseForAll) {
  for (const Code code : {Code::kPeerLost, Code::kCancelled, Code::kDeadlineExceeded}) {
    server_ = StoreServer::start({}).take_or_throw();
    const std::string address = server_->address().text;
    const auto of_rank_0 = [&] {
      return transport::connect_to_rank({0, 5s}, {.address = {address}}, soon()).take_or_throw();
    };
    Watched one(of_rank_0(), 1, true), two(of_rank_0(), 2, true);
    server_.reset();
    ASSERT_TRUE(two.fails());
    for (Watched* each : {&one, &two}) {
      EXPECT_EQ(each->report(collective(1), code).message(),
                "lost rank 0, which serves the Store at " + address + ": it closed the connection");
    }
  }
}

TEST_F(JobWatchTest, OnlyWhoWaitsForOneThatHasLeftSaysSo) {
  Watched zero(client(), 0), one(client(), 1);
  one.world->begin(collective(1));
  one.world->end();
  EXPECT_TRUE(one.watch->leave().ok());
  const auto left = HasSubstr("it closed the connection; rank 1 has left in order");
  EXPECT_THAT(zero.report(receive(2)).to_string(), Not(HasSubstr("left"))) << "rank 2 was lost";
  for (const Operation& needs_it : {collective(2), receive(1)}) {
    ASSERT_TRUE(zero.watch->store().erase("failure", soon()).ok());
    Watched waits(client(), 0);
    EXPECT_THAT(waits.report(needs_it).to_string(), left);
  }
  ASSERT_TRUE(zero.watch->store().erase("failure", soon()).ok());
  Watched had_it(client(), 0);
  EXPECT_THAT(had_it.report(collective(1)).to_string(), Not(HasSubstr("left")))
      << "its part is done";
}

TEST_F(JobWatchTest, OthersCanAskWhoHasLeft) {
  Watched zero(client(), 0), one(client(), 1);
  EXPECT_FALSE(zero.watch->has_left(1));
  EXPECT_TRUE(one.watch->leave().ok());
  for (const Deadline by = soon(); !zero.watch->has_left(1) && !by.expired();)
    ::poll(nullptr, 0, 1);
  EXPECT_TRUE(zero.watch->has_left(1));
  EXPECT_FALSE(zero.watch->has_left(2));
}

TEST_F(JobWatchTest, AWaitForOneThatHasLeftEndsTheJob) {
  for (const bool from_any : {false, true}) {
    server_ = StoreServer::start({}).take_or_throw();
    Watched zero(client(), 0), one(client(), 1), two(client(), 2);
    EXPECT_TRUE(one.watch->leave().ok());
    if (from_any) {
      EXPECT_TRUE(two.watch->leave().ok());
    }
    zero.messages->begin(receive(from_any ? kAnyRank : 1));
    ASSERT_TRUE(zero.fails());
    EXPECT_THAT(zero.health->status().to_string(),
                HasSubstr(from_any ? "recv from any (0 uint8, tag 0) in messages: ranks 1, 2 have"
                                   : "recv from 1 (0 uint8, tag 0) in messages: rank 1 has"));
  }
}

TEST_F(JobWatchTest, AGroupThatAllHaveLeftLeavesNothingInTheStore) {
  Watched zero(client(), 0), one(client(), 1), two(client(), 2);
  const auto group = [](const Watched& of, Rank rank) {
    return Activities::Group{"trio", rank, 3, of.world};
  };
  EXPECT_TRUE(zero.watch->leave(group(zero, 0)).ok());
  EXPECT_TRUE(one.watch->leave(group(one, 1)).ok());
  EXPECT_EQ(server_->get("left/trio"), "0 0 0\n1 1 0\n");
  EXPECT_TRUE(two.watch->leave(group(two, 2)).ok());
  EXPECT_EQ(server_->get("left/trio"), std::nullopt);
  EXPECT_TRUE(two.watch->leave({"of unknown size", 2, 0, two.world}).ok());
  EXPECT_EQ(server_->get("left/of unknown size"), "2 2 0\n");
  for (Watched* each : {&zero, &one, &two}) EXPECT_TRUE(each->watch->leave().ok());
  EXPECT_EQ(server_->get("left/"), std::nullopt);
}

/// The Store goes away between what a rank tells and its goodbye.
class NoGoodbye final : public WrappedStore {
 public:
  using WrappedStore::WrappedStore;
  Status goodbye(Deadline by) override {
    static_cast<void>(WrappedStore::goodbye(by));
    return {Code::kPeerLost, "lost the Store"};
  }
};

TEST_F(JobWatchTest, WhoHasToldTheOthersHasLeft) {
  Watched one(std::make_unique<NoGoodbye>(client()), 1);
  EXPECT_TRUE(one.watch->leave().ok());
  EXPECT_EQ(server_->get("left/"), "1 1 0\n");
  EXPECT_EQ(one.watch->store().set("x", "y", soon()).code(), Code::kCancelled) << "nobody is there";
  EXPECT_EQ(one.report(collective(1)).code(), Code::kPeerLost) << "and nobody is asked";
}

TEST_F(JobWatchTest, WhoCannotTellTheOthersSaysSo) {
  Watched one(client(), 1);
  server_.reset();
  ASSERT_TRUE(one.fails());
  EXPECT_TRUE(one.watch->leave().ok()) << "after a failure nobody has to be told";
  server_ = StoreServer::start({}).take_or_throw();
  Watched two(client(), 2);
  EXPECT_TRUE(two.watch->store().goodbye(soon()).ok());
  EXPECT_EQ(two.watch->leave().code(), Code::kCancelled);
}

}  // namespace
}  // namespace stormo::comm
