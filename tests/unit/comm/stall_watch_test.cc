// The detection of stalls with a Store that takes its time. stall_test has real jobs.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/comm/watch/stall_watch.h>
#include <unistd.h>

#include <atomic>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <nlohmann/json.hpp>

namespace stormo::comm {
namespace {

using namespace std::chrono_literals;
using ::testing::HasSubstr;
using transport::StoreClient;
using transport::StoreServer;

/// Every value comes 50 ms late, as from a Store whose host is busy.
class LateStore final : public StoreClient {
 public:
  explicit LateStore(std::unique_ptr<StoreClient> store) : store_(std::move(store)) {}

  Result<std::string> get(std::string_view key, Deadline by) override {
    if (key.starts_with("process/")) ++processes_;
    const Deadline late = Deadline::after(50ms);
    static_cast<void>(store_->get("never set", Deadline::at(std::min(late.when(), by.when()))));
    return store_->get(key, by);
  }
  Status set(std::string_view key, std::string_view value, Deadline by) override {
    return store_->set(key, value, by);
  }
  Result<std::string> set_if_absent(std::string_view key, std::string_view value,
                                    Deadline by) override {
    return store_->set_if_absent(key, value, by);
  }
  Status erase(std::string_view key, Deadline by) override { return store_->erase(key, by); }
  Status watch(std::string_view key, std::function<void(std::string_view)> callback) override {
    return store_->watch(key, std::move(callback));
  }
  Status set_will(std::string_view key, std::string_view value, Duration silence,
                  Deadline by) override {
    return store_->set_will(key, value, silence, by);
  }
  void set_note_source(std::function<std::string()> source) override {
    store_->set_note_source(std::move(source));
  }
  void on_lost(std::function<void(Status)> callback) override {
    store_->on_lost(std::move(callback));
  }
  Status goodbye(Deadline by) override { return store_->goodbye(by); }
  std::string local_address() const override { return store_->local_address(); }

  /// How often it was asked for a process.
  int processes() const { return processes_; }

 private:
  const std::unique_ptr<StoreClient> store_;
  std::atomic<int> processes_ = 0;
};

/// A rank that waits in an operation.
class WaitingRank {
 public:
  WaitingRank(const StoreServer& server, StallWatch::Options options)
      : activities_(options.activities),
        activity_(activities_->add("", options.rank)),
        store_(*StoreClient::connect({server.address(), {}}, Deadline::after(5s))),
        watch_(store_, std::move(options)) {
    activity_->begin({.sequence = 1, .kind = OperationKind::kAllReduce});
    EXPECT_TRUE(watch_.start(Deadline::after(5s)).ok());
  }
  ~WaitingRank() {
    watch_.stop();
    static_cast<void>(store_.goodbye(Deadline::after(5s)));
  }
  StallWatch& watch() { return watch_; }
  const LateStore& store() const { return store_; }

 private:
  const std::shared_ptr<Activities> activities_;
  const std::shared_ptr<Activity> activity_;
  LateStore store_;
  StallWatch watch_;
};

TEST(StallWatch, OneSilentRankMakesNoOtherSilentWhenTheStoreIsLate) {
  const auto server = StoreServer::start({});
  ASSERT_TRUE(server.ok());
  const std::string flight =
      ::testing::TempDir() + "stall-watch-" + std::to_string(::getpid()) + ".json";
  const auto health = std::make_shared<transport::Health>();
  std::mutex mutex;
  std::condition_variable failed;
  const auto fail = [&](const Status& why) {
    const std::scoped_lock lock(mutex);
    health->fail(why);
    failed.notify_all();
  };
  const auto options = [&](Rank rank) {
    return StallWatch::Options{.rank = rank,
                               .size = 3,
                               .identity = "rank " + std::to_string(rank) + " (test)",
                               .limits = {.warning = 0s, .timeout = 100ms},
                               .flight_file = flight,
                               .activities = std::make_shared<Activities>(),
                               .health = health,
                               .fail = fail};
  };
  WaitingRank asks(**server, options(0));
  WaitingRank silent(**server, options(1));
  WaitingRank answers(**server, options(2));
  silent.watch().stop();
  const Deadline by = Deadline::after(20s);
  for (std::unique_lock lock(mutex); !health->failed() && !by.expired();) {
    asks.watch().tick();
    failed.wait_for(lock, 10ms);
  }
  const std::string why(health->status().message());
  EXPECT_THAT(why, HasSubstr("rank 1 (test) does not answer"));
  EXPECT_THAT(why, HasSubstr("ranks 0, 2 wait in it"));
  EXPECT_THAT(why, HasSubstr("rank 1: its process is there"));
  EXPECT_EQ(asks.store().processes(), 1);  // one is silent, and its process stays the same

  std::ifstream in(flight);
  const auto file = nlohmann::json::parse(in, nullptr, /*allow_exceptions=*/false);
  std::filesystem::remove(flight);
  ASSERT_TRUE(file.is_object());
  ASSERT_EQ(file["ranks"].size(), 2);
  for (const auto& record : file["ranks"]) {
    ASSERT_TRUE(record.contains("neighbours")) << record["rank"];
    EXPECT_EQ(record["neighbours"][0]["rank"], 1);
  }
}

}  // namespace
}  // namespace stormo::comm
