// A virtual run with the times of a real one has its order. Workers are threads on a shared shard.
#include <stormo/server/ledger/record_times.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>
#include <tuple>
#include <utility>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/server/message/data_message.h>
#include <stormo/server/shard/shared_shard.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::server {
namespace {

using Kind = protocol::PolicyOptions::Kind;
using Events = std::vector<ShardEvent>;

constexpr int kWorkers = 4;
constexpr int kSteps = 25;

/// A push that a shard has taken, or the end of a worker (sequence -1).
struct Change {
  int worker = 0;
  std::int64_t sequence = 0;
  protocol::PushAction action = protocol::PushAction::kWait;
  bool operator==(const Change&) const = default;
};

/// What a worker has done, with the commits that its changes made.
struct Account {
  Events events;
  std::vector<std::pair<std::uint64_t, Change>> changes;
};

std::int64_t now_ns() {
  return Duration(std::chrono::steady_clock::now().time_since_epoch()).count();
}

/// Computes for a random time: workers differ, and now and then one is slow.
void compute(Rng& rng, int worker) {
  const std::uint64_t longest = rng.below(12) == 0 ? 60'000 : 2000 * std::uint64_t(worker);
  for (std::uint64_t left = rng.below(longest + 1); left > 0; --left) (void)rng.uniform();
  if (rng.below(2) == 0) std::this_thread::yield();
}

Account work(SharedShard& shard, int worker, std::uint64_t seed) {
  Account out;
  Rng rng(seed, "times", static_cast<std::uint64_t>(worker));
  const std::vector<double> gradient(static_cast<std::size_t>(shard.pieces()[0].elements()), 1);
  const auto note = [&](ShardEvent::Kind kind, std::uint64_t commit, int step, std::int64_t at) {
    out.events.push_back(
        {.commit = commit, .kind = kind, .step = static_cast<std::uint64_t>(step), .at_ns = at});
  };
  for (int step = 0; step < kSteps; ++step) {
    const Shard::View view = shard.read().take_or_throw();
    note(ShardEvent::Kind::kRead, view.commit, step, now_ns());
    compute(rng, worker);
    const std::int64_t begun = now_ns();
    const PushedPiece pieces[] = {{.array = gradient.data()}};
    const Shard::Pushed pushed =
        shard.push({.pieces = pieces, .lr = 1, .sequence = static_cast<std::uint64_t>(step)})
            .take_or_throw();
    note(ShardEvent::Kind::kPush, pushed.commit, step, begun);
    out.changes.emplace_back(pushed.commit, Change{worker, step, pushed.decision.action});
    if (rng.below(3) == 0) compute(rng, worker);
  }
  const std::uint64_t left = shard.leave(1).take_or_throw();
  note(ShardEvent::Kind::kLeave, left, kSteps, now_ns());
  out.changes.emplace_back(left, Change{worker, -1});
  return out;
}

class VirtualRun : public testing::TestWithParam<std::tuple<Kind, std::uint64_t>> {};
INSTANTIATE_TEST_SUITE_P(All, VirtualRun,
                         testing::Combine(testing::Values(Kind::kSync, Kind::kAsync, Kind::kSsp,
                                                          Kind::kNSoftsync, Kind::kBackupWorkers),
                                          testing::Range<std::uint64_t>(0, 8)));

TEST_P(VirtualRun, HasTheOrderOfTheRecordedOne) {
  const auto [kind, seed] = GetParam();
  const auto policy =
      protocol::make_policy({.kind = kind, .bound = 1, .n = 2, .backups = 1}, kWorkers)
          .take_or_throw();
  const auto memory = transport::MemoryFile::anonymous(std::uint64_t{1} << 22).take_or_throw();
  std::vector<std::unique_ptr<SharedShard>> shards;
  for (int w = 0; w < kWorkers; ++w) {
    shards.push_back(std::make_unique<SharedShard>(
        std::vector<ShardPiece>{{.parameter = 0, .begin = 0, .end = 64, .dtype = DType::kFloat64}},
        ShardOptions{.workers = kWorkers, .optimizer = {}, .policy = policy}, w,
        ShardWait{.policy = transport::wait_policy(kWorkers, 2)}));
    w == 0 ? shards[0]->create(memory.data()) : shards.back()->attach(memory.data());
  }
  ASSERT_LE(shards[0]->bytes(), memory.size());
  std::vector<Account> accounts(kWorkers);
  std::vector<std::thread> threads;
  for (std::size_t w = 0; w < kWorkers; ++w) {
    threads.emplace_back(
        [&, w, seed = seed] { accounts[w] = work(*shards[w], static_cast<int>(w), seed); });
  }
  for (std::thread& t : threads) t.join();

  std::vector<Events> events;
  std::vector<std::pair<std::uint64_t, Change>> real;
  for (const Account& account : accounts) {
    events.push_back(account.events);
    real.insert(real.end(), account.changes.begin(), account.changes.end());
  }
  std::ranges::sort(real, {}, &std::pair<std::uint64_t, Change>::first);
  const RecordedTimes times = recorded_times(events).take_or_throw();
  std::vector<Change> simulated;
  const auto outcome =
      protocol::run_virtual(
          {.workers = kWorkers,
           .steps = kSteps,
           .times = times.steps,
           .leaves = times.leaves,
           .latency = {}},
          *policy,
          {.pushed =
               [&](int, const protocol::Push& push, const protocol::PushDecision& decision) {
                 simulated.push_back(
                     {push.worker, static_cast<std::int64_t>(push.sequence), decision.action});
                 return Status();
               },
           .left =
               [&](int worker, int, bool) {
                 simulated.push_back({worker, -1});
                 return Status();
               }})
          .take_or_throw();
  ASSERT_EQ(simulated.size(), real.size());
  for (std::size_t i = 0; i < real.size(); ++i) {
    ASSERT_EQ(simulated[i], real[i].second) << "change " << i;
  }
  // versions, drops and the staleness of every worker
  EXPECT_EQ(encode(outcome.servers[0]), encode(shards[0]->current_state()));
}

// Worker 0 is the first to push to shard 0, and the second one at shard 1.
TEST(RecordedOrder, IsThatOfEachWorkerAndEachShard) {
  using enum ShardEvent::Kind;
  std::vector<Events> events = {{{.commit = 0, .kind = kRead, .shard = 0},
                                 {.commit = 1, .kind = kRead, .shard = 1},
                                 {.commit = 1, .kind = kPush, .shard = 0},
                                 {.commit = 2, .kind = kPush, .shard = 1}},
                                {{.commit = 0, .kind = kRead, .shard = 0},
                                 {.commit = 0, .kind = kRead, .shard = 1},
                                 {.commit = 1, .kind = kPush, .shard = 1},
                                 {.commit = 2, .kind = kPush, .shard = 0}}};
  std::vector<int> workers;
  std::vector<Events> of_worker(2);
  const auto order = recorded_order(events).take_or_throw();
  for (const auto& [w, event] : order) {
    workers.push_back(w);
    of_worker[static_cast<std::size_t>(w)].push_back(event);
  }
  EXPECT_EQ(of_worker, events);
  EXPECT_THAT(workers, testing::ElementsAre(0, 1, 1, 1, 0, 0, 0, 1));
  // then each push of worker 1 would come after a push that comes after it
  std::swap(events[1][2], events[1][3]);
  EXPECT_EQ(recorded_order(events).status().code(), Code::kCorrupt);
}

}  // namespace
}  // namespace stormo::server
