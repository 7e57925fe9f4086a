// The detection of stalls with a Store that takes its time. stall_test has real jobs.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/comm/watch/stacks.h>
#include <stormo/comm/watch/stall_watch.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <mutex>
#include <nlohmann/json.hpp>

#include "tests/unit/comm/wrapped_store.h"

namespace stormo::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using transport::StoreClient;
using transport::StoreServer;

/// Every value comes 50 ms late, as from a Store whose host is busy.
class LateStore final : public WrappedStore {
 public:
  /// `late`: how long the first answer to another rank takes.
  LateStore(std::unique_ptr<StoreClient> store, Duration late)
      : WrappedStore(std::move(store)), late_(late) {}

  Result<std::string> get(std::string_view key, Deadline by) override {
    pass(std::min<Duration>(50ms, by.remaining()));
    return WrappedStore::get(key, by);
  }
  Status set(std::string_view key, std::string_view value, Deadline by) override {
    if (key.starts_with("answer/")) pass(late_.exchange(Duration::zero()));
    return WrappedStore::set(key, value, by);
  }

 private:
  void pass(Duration time) {
    static_cast<void>(WrappedStore::get("never set", Deadline::after(time)));
  }

  std::atomic<Duration> late_;
};

/// A rank that waits in an operation.
class WaitingRank {
 public:
  WaitingRank(const StoreServer& server, StallWatch::Options options, Duration late = {})
      : activities_(options.activities),
        activity_(activities_->add("", options.rank)),
        store_(*StoreClient::connect({server.address(), {}}, Deadline::after(5s)), late),
        watch_(store_, std::move(options)) {
    activity_->begin({.sequence = 1, .kind = OperationKind::kAllReduce});
    EXPECT_TRUE(watch_.start().ok());
  }
  ~WaitingRank() {
    watch_.stop();
    static_cast<void>(store_.goodbye(Deadline::after(5s)));
  }
  StallWatch& watch() { return watch_; }
  Activity& activity() { return *activity_; }

 private:
  const std::shared_ptr<Activities> activities_;
  const std::shared_ptr<Activity> activity_;
  LateStore store_;
  StallWatch watch_;
};

class StallWatchTest : public ::testing::Test {
 protected:
  void TearDown() override { std::filesystem::remove(flight_); }

  StallWatch::Options options(Rank rank, int size) {
    return {.rank = rank,
            .size = size,
            .identity = "rank " + std::to_string(rank) + " (test)",
            .limits = {.warning = 0s, .timeout = 100ms},
            .flight_file = flight_,
            .activities = std::make_shared<Activities>(),
            .health = health_,
            .find_process =
                [this](StoreClient&, Rank of, Deadline) {
                  ++processes_;
                  return Result(RankProcess{fmt::format("rank {} (test)", of), ::getpid(),
                                            process_namespace()});
                },
            .fail =
                [this](const Status& why) {
                  const std::scoped_lock lock(mutex_);
                  health_->fail(why);
                  failed_.notify_all();
                }};
  }
  /// What the job ends with, when these hear their heartbeats.
  std::string cause(std::initializer_list<WaitingRank*> ranks) {
    const Deadline by = Deadline::after(20s);
    for (std::unique_lock lock(mutex_); !health_->failed() && !by.expired();) {
      for (WaitingRank* rank : ranks) rank->watch().tick();
      failed_.wait_for(lock, 10ms);
    }
    return std::string(health_->status().message());
  }

  const std::unique_ptr<StoreServer> server_ = StoreServer::start({}).take_or_throw();
  const std::string flight_ =
      ::testing::TempDir() + "stall-watch-" + std::to_string(::getpid()) + ".json";
  const std::shared_ptr<transport::Health> health_ = std::make_shared<transport::Health>();
  std::mutex mutex_;
  std::condition_variable failed_;
  std::atomic<int> processes_ = 0;  // how often one was looked for
};

TEST_F(StallWatchTest, OneSilentRankMakesNoOtherSilentWhenTheStoreIsLate) {
  WaitingRank asks(*server_, options(0, 3));
  WaitingRank silent(*server_, options(1, 3));
  WaitingRank answers(*server_, options(2, 3));
  silent.watch().stop();
  const std::string why = cause({&asks});
  EXPECT_THAT(why, HasSubstr("rank 1 (test) does not answer"));
  EXPECT_THAT(why, HasSubstr("ranks 0, 2 wait in it"));
  EXPECT_THAT(why, HasSubstr("rank 1: its process is there"));
  EXPECT_EQ(processes_, 1);  // one is silent, and its process stays the same

  std::ifstream in(flight_);
  const auto file = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  ASSERT_TRUE(file.is_object());
  ASSERT_EQ(file["ranks"].size(), 2);
  for (const auto& record : file["ranks"]) {
    ASSERT_TRUE(record.contains("neighbours")) << record["rank"];
    EXPECT_EQ(record["neighbours"][0]["rank"], 1);
  }
}

// The machine is busy: what comes when the next question is asked counts.
TEST_F(StallWatchTest, WhoAnswersLateIsNotSilent) {
  WaitingRank asks(*server_, options(0, 2));
  StallWatch::Options never_asks = options(1, 2);
  never_asks.limits.timeout = 0s;
  WaitingRank late(*server_, never_asks, 1300ms);
  late.activity().end();
  late.activity().begin({.kind = OperationKind::kSend});
  asks.activity().end();
  asks.activity().begin({.sequence = 2, .kind = OperationKind::kAllReduce});
  EXPECT_THAT(cause({&asks, &late}), HasSubstr("rank 1 (test) has not reached all_reduce #2"));
}

// It says nothing for longer than a stall lasts, and then gets on.
TEST_F(StallWatchTest, WhoIsSilentIsWaitedForWhereThatIsWanted) {
  StallWatch::Options waits = options(0, 2);
  waits.on_stopped = transport::OnStopped::kWait;
  StallWatch::Options never_asks = options(1, 2);
  never_asks.limits.timeout = 0s;
  WaitingRank asks(*server_, waits);
  WaitingRank silent(*server_, never_asks, 4s);
  asks.activity().end();
  asks.activity().begin({.sequence = 2, .kind = OperationKind::kAllReduce});
  EXPECT_THAT(cause({&asks, &silent}), HasSubstr("rank 1 (test) has not reached all_reduce #2"));
}

}  // namespace
}  // namespace stormo::comm
