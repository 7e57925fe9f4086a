#include <stormo/server/ledger/shared_ledger.h>

#include <csignal>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

namespace stormo::server {
namespace {

class Workers {
 public:
  Workers(int workers, const Ledger::Terms& terms)
      : memory_(SharedLedger::bytes(workers) / 64 + 1) {
    for (int w = 0; w < workers; ++w) {
      ledgers_.push_back(std::make_unique<SharedLedger>(workers, w));
      auto* memory = reinterpret_cast<std::byte*>(memory_.data());
      w == 0 ? ledgers_[0]->create(memory) : ledgers_.back()->attach(memory);
    }
    throw_if_error(of(0).deal(terms));
  }
  SharedLedger& of(int worker) { return *ledgers_[static_cast<std::size_t>(worker)]; }
  Ledger::Turn next(int worker, std::int64_t samples = 1) {
    return of(worker)
        .next({.loss_sum = 2.0 * static_cast<double>(samples), .samples = samples})
        .take_or_throw();
  }

 private:
  struct alignas(64) Line {
    std::byte bytes[64];
  };
  std::vector<Line> memory_;
  std::vector<std::unique_ptr<SharedLedger>> ledgers_;
};

using Tasks = std::vector<std::uint64_t>;

TEST(SharedLedger, AWorkerTakesItsShareInOrder) {
  Workers workers(2, {.first_step = 3, .steps = 6, .first_sample = 40});
  EXPECT_EQ(workers.of(1).terms()->first_sample, 40);
  for (std::uint64_t step = 3; step < 6; ++step) {
    const auto turn = workers.next(0, step == 3 ? 0 : 1);
    EXPECT_EQ(turn.task, (StepTask{0, step}));
    EXPECT_EQ(turn.ends_share, step == 5);
    EXPECT_EQ(turn.position, 3u) << "worker 1 has done nothing";
    EXPECT_FALSE(turn.all_done);
  }
  EXPECT_FALSE(workers.next(0).task) << "shares are equal: nothing is taken from worker 1";
}

TEST(SharedLedger, AllIsDoneWhenTheLastTaskHasEnded) {
  Workers workers(2, {.steps = 1});
  (void)workers.next(0, 0);
  (void)workers.next(1, 0);
  const auto first = workers.next(0, 5);
  EXPECT_FALSE(first.task);
  EXPECT_FALSE(first.all_done) << "worker 1 computes";
  EXPECT_EQ(first.position, 0u);
  const auto last = workers.next(1, 7);
  EXPECT_TRUE(last.all_done);
  EXPECT_EQ(last.position, 1u);
  EXPECT_EQ(last.totals.samples, 12);
  EXPECT_EQ(last.totals.loss_sum, 24);
}

TEST(SharedLedger, StepsOfALostWorkerAreDoneByOthersButForTheOneInItsHands) {
  Workers workers(3, {.steps = 4});
  (void)workers.next(1, 0);
  (void)workers.next(1);  // step 0 is done, step 1 begun
  workers.of(1).evict();
  std::set<std::pair<int, std::uint64_t>> done;
  for (const int w : {0, 2}) {
    for (auto turn = workers.next(w, 0); turn.task; turn = workers.next(w)) {
      done.emplace(turn.task->part, turn.task->step);
    }
  }
  EXPECT_TRUE(workers.of(0).look()->all_done);
  EXPECT_EQ(done.size(), 10u);
  EXPECT_TRUE(done.contains({1, 2}) && done.contains({1, 3}));
}

TEST(SharedLedger, AWorkerThatCameBackDoesWhatIsLeftOfItsShare) {
  Workers workers(2, {.steps = 10});
  (void)workers.next(1, 0);
  workers.of(1).evict();
  for (int i = 0; i < 13; ++i) (void)workers.next(0);  // 10 of its own, 3 of the other
  workers.of(1).readmit();
  EXPECT_FALSE(workers.next(0).task);
  Tasks mine;
  for (auto turn = workers.next(1, 0); turn.task; turn = workers.next(1))
    mine.push_back(turn.task->step);
  EXPECT_EQ(mine, (Tasks{4, 5, 6, 7, 8, 9}));
}

TEST(SharedLedger, SaysWhoWasLostAndCameBack) {
  Workers workers(4, {.steps = 10});
  EXPECT_TRUE(workers.of(0).look()->losses.empty());
  workers.of(3).evict();
  workers.of(3).evict();  // it takes more than one attempt to take a worker out
  workers.of(1).evict();
  workers.of(1).readmit();
  workers.of(1).evict();
  workers.of(1).readmit();
  workers.of(2).readmit();  // a new process of a worker that had left
  const std::vector<Ledger::Losses> expected = {{.worker = 1, .lost = 2, .came_back = 2},
                                                {.worker = 3, .lost = 1, .came_back = 0}};
  EXPECT_EQ(workers.of(0).look()->losses, expected);
  EXPECT_EQ(workers.next(0, 0).losses, expected);
}

TEST(SharedLedger, AWorkerWithoutATaskWaitsUntilSomethingChanges) {
  Workers workers(2, {.steps = 1});
  (void)workers.next(1, 0);
  (void)workers.next(0, 0);
  (void)workers.next(0);  // its share is done
  EXPECT_FALSE(workers.next(0, 0).task);
  const Deadline soon = Deadline::after(std::chrono::milliseconds(20));
  throw_if_error(workers.of(0).wait(soon));
  EXPECT_TRUE(soon.expired()) << "nothing has changed";
  std::thread other([&workers] { (void)workers.next(1); });
  const Deadline late = Deadline::after(std::chrono::seconds(20));
  throw_if_error(workers.of(0).wait(late));
  EXPECT_FALSE(late.expired()) << "it was not woken";
  other.join();
  EXPECT_TRUE(workers.next(0, 0).all_done);
}

TEST(SharedLedger, BySpeedAFastWorkerTakesStepsFromTheBackOfSlowShares) {
  Workers workers(2, {.steps = 4, .by_speed = true});
  (void)workers.next(1, 0);
  Tasks taken;
  for (auto turn = workers.next(0, 0); turn.task; turn = workers.next(0)) {
    if (turn.task->part == 1) taken.push_back(turn.task->step);
  }
  EXPECT_EQ(taken, (Tasks{3, 2, 1}));
  EXPECT_FALSE(workers.next(1).task);
}

TEST(SharedLedger, TheFirstStopCountsAndEndsAllTasks) {
  Workers workers(2, {.steps = 9});
  (void)workers.next(0, 0);
  throw_if_error(workers.of(1).stop(SIGTERM));
  throw_if_error(workers.of(0).stop(SIGINT));
  const auto turn = workers.next(0);
  EXPECT_FALSE(turn.task);
  EXPECT_EQ(turn.stop_signal, SIGTERM);
}

TEST(SharedLedger, CountsTheOthersThatHaveNotLeft) {
  Workers workers(4, {.steps = 1});
  EXPECT_EQ(workers.of(0).look()->others, 3);
  throw_if_error(workers.of(1).leave());
  workers.of(2).evict();
  EXPECT_EQ(workers.of(0).look()->others, 1);
  EXPECT_EQ(workers.of(1).look()->others, 2);
}

TEST(SharedLedger, AfterAStopNobodyIsWaitedForThatHasNotCome) {
  Workers workers(3, {.steps = 9});
  (void)workers.next(1, 0);
  throw_if_error(workers.of(0).stop(SIGTERM));
  EXPECT_EQ(workers.of(0).look()->others, 1);
  (void)workers.next(2, 0);
  EXPECT_EQ(workers.of(0).look()->others, 2);
}

TEST(SharedLedger, WaitEndsByAChangeOrByItsDeadline) {
  Workers workers(2, {.steps = 2});
  (void)workers.of(0).look();
  const TimePoint start = std::chrono::steady_clock::now();
  EXPECT_TRUE(workers.of(0).wait(Deadline::after(std::chrono::milliseconds(20))).ok());
  EXPECT_GE(std::chrono::steady_clock::now() - start, std::chrono::milliseconds(20));
  (void)workers.next(1);
  EXPECT_TRUE(workers.of(0).wait(Deadline::never()).ok());
}

// Every step is done exactly once, whoever takes it.
TEST(SharedLedger, ThreadsDoEveryStepOnce) {
  constexpr int kWorkers = 4;
  constexpr std::uint64_t kSteps = 2000;
  Workers workers(kWorkers, {.steps = kSteps, .by_speed = true});
  std::vector<std::map<std::pair<int, std::uint64_t>, int>> done(kWorkers);
  std::vector<std::thread> threads;
  for (int w = 0; w < kWorkers; ++w) {
    threads.emplace_back([&, w] {
      auto turn = workers.next(w, 0);
      for (; !turn.all_done || turn.task; turn = workers.next(w, turn.task ? 1 : 0)) {
        if (turn.task) ++done[static_cast<std::size_t>(w)][{turn.task->part, turn.task->step}];
      }
    });
  }
  for (std::thread& t : threads) t.join();
  std::map<std::pair<int, std::uint64_t>, int> all;
  for (const auto& of_one : done) {
    for (const auto& [task, count] : of_one) all[task] += count;
  }
  EXPECT_EQ(all.size(), kWorkers * kSteps);
  for (const auto& [task, count] : all) EXPECT_EQ(count, 1) << task.first << " " << task.second;
  EXPECT_EQ(workers.of(0).look()->totals.samples, kWorkers * static_cast<std::int64_t>(kSteps));
}

}  // namespace
}  // namespace stormo::server
