#include <stormo/protocol/server/portions.h>

#include <algorithm>
#include <chrono>
#include <functional>
#include <queue>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;

TimePoint at(Duration since) { return TimePoint(since); }

TEST(PortionState, IsOneWord) {
  for (const PortionState& state : {PortionState{}, PortionState{7, 0, -1},
                                    PortionState{0xffffffff, 65533, 1}, PortionState{3, 511, 0}}) {
    EXPECT_EQ(PortionState::unpack(state.pack()), state);
  }
  EXPECT_EQ(PortionState{}.pack(), 0u) << "memory that is zero is a portion of the first batch";
}

TEST(PortionState, IsTakenGivenUpAndDone) {
  PortionState state = taken({.batch = 4}, 2);
  EXPECT_EQ(state, (PortionState{4, 2, -1}));
  state = taken(state, 5);
  EXPECT_EQ(state, (PortionState{4, 2, 5}));
  EXPECT_EQ(given_up(state, 2), (PortionState{4, 5, -1}));
  EXPECT_EQ(given_up(state, 5), (PortionState{4, 2, -1}));
  EXPECT_EQ(given_up(state, 9), state);
  EXPECT_EQ(done(state), (PortionState{5, -1, -1}));
}

TEST(Portions, AFreeOneComesFirstAndCopiesOnlyOfThoseThatAreLate) {
  std::vector<PortionView> all = {{.state = {1, -1, -1}},
                                  {.state = {0, 3, -1}, .begun = at(milliseconds(10))},
                                  {.state = {0, 1, -1}, .begun = at(milliseconds(4))},
                                  {.state = {0, -1, -1}}};
  const auto choose = [&](int worker, Duration now, Duration usual = milliseconds(5)) {
    return choose_portion(all, 0, worker, at(now), usual);
  };
  EXPECT_EQ(choose(0, milliseconds(100)).portion, 3u);
  all[3].state = done(all[3].state);
  EXPECT_FALSE(choose(0, milliseconds(13)).portion) << "the oldest is late at 4 + 2 * 5 ms";
  EXPECT_EQ(choose(0, milliseconds(13)).again, at(milliseconds(14)));
  EXPECT_EQ(choose(0, milliseconds(14)).portion, 2u);
  EXPECT_EQ(choose(1, milliseconds(100)).portion, 1u) << "not its own";
  all[2].state = taken(all[2].state, 0);
  EXPECT_EQ(choose(4, milliseconds(100)).portion, 1u) << "two workers are enough";
  EXPECT_FALSE(choose(0, milliseconds(100), Duration::zero()).portion) << "nothing is known yet";
  all[1].state = done(all[1].state);
  EXPECT_FALSE(choose(4, milliseconds(100)).portion);
}

/// Batches in virtual time: the same choices as in a real run.
class VirtualBatches {
 public:
  VirtualBatches(std::size_t portions, std::vector<double> slowness, double jitter)
      : slowness_(std::move(slowness)), jitter_(jitter), all_(portions), counted_(portions) {}

  /// Time of each batch.
  std::vector<Duration> run(std::uint32_t batches) {
    std::vector<Duration> times;
    for (std::size_t w = 0; w < slowness_.size(); ++w) {
      queue_.push({.at = {}, .worker = static_cast<int>(w)});
    }
    TimePoint begun{};
    while (times.size() < batches) {
      const Event event = queue_.top();
      queue_.pop();
      now_ = event.at;
      if (event.portion >= 0) finish(event);
      if (std::ranges::all_of(all_, [&](const PortionView& p) { return p.state.batch > batch_; })) {
        times.push_back(now_ - begun);
        begun = now_;
        ++batch_;
        for (const int w : idle_) queue_.push({.at = now_, .worker = w});
        idle_.clear();
      }
      next(event.worker);
    }
    return times;
  }
  int copies = 0;

 private:
  struct Event {
    TimePoint at{};
    int worker = 0;
    int portion = -1;
    std::uint32_t batch = 0;
    Duration took{};
    bool operator>(const Event& other) const { return at > other.at; }
  };

  void next(int worker) {
    const PortionChoice choice = choose_portion(all_, batch_, worker, now_, usual_);
    if (!choice.portion) {
      if (choice.again) {
        queue_.push({.at = *choice.again, .worker = worker});
      } else {
        idle_.push_back(worker);
      }
      return;
    }
    PortionView& portion = all_[*choice.portion];
    if (portion.state.first >= 0) ++copies;
    if (portion.state.first < 0) portion.begun = now_;
    portion.state = taken(portion.state, worker);
    const double factor =
        slowness_[static_cast<std::size_t>(worker)] * (1 + jitter_ * (2 * rng_.uniform() - 1));
    const auto took = std::chrono::duration_cast<Duration>(milliseconds(10) * factor);
    queue_.push({.at = now_ + took,
                 .worker = worker,
                 .portion = static_cast<int>(*choice.portion),
                 .batch = batch_,
                 .took = took});
  }

  void finish(const Event& event) {
    PortionState& state = all_[static_cast<std::size_t>(event.portion)].state;
    if (state.batch != event.batch) return;
    state = done(state);
    ++counted_[static_cast<std::size_t>(event.portion)];
    EXPECT_EQ(counted_[static_cast<std::size_t>(event.portion)], event.batch + 1);
    usual_ = usual_ == Duration::zero() ? event.took : usual_ + (event.took - usual_) / 8;
  }

  std::vector<double> slowness_;
  double jitter_;
  std::vector<PortionView> all_;
  std::vector<std::uint32_t> counted_;  // results that were used
  std::priority_queue<Event, std::vector<Event>, std::greater<>> queue_;
  std::vector<int> idle_;
  TimePoint now_{};
  std::uint32_t batch_ = 0;
  Duration usual_{};
  Rng rng_{1, "portions"};
};

Duration mean_of(const std::vector<Duration>& times) {
  Duration sum{};
  for (const Duration& t : times) sum += t;
  return sum / static_cast<std::int64_t>(times.size());
}

// Dean et al. (Sandblaster): backup copies of portions of the slowest worker.
TEST(Portions, AWorkerThatIsTenTimesSlowerCostsAtMostHalfAStep) {
  for (const std::size_t workers : {4u, 8u, 16u}) {
    std::vector<double> slowness(workers, 1);
    const std::size_t portions = 8 * workers;
    const Duration equal = mean_of(VirtualBatches(portions, slowness, 0.1).run(50));
    slowness.back() = 10;
    VirtualBatches unequal(portions, slowness, 0.1);
    const Duration slow = mean_of(unequal.run(50));
    EXPECT_GT(unequal.copies, 0);
    EXPECT_LT(slow, equal * 3 / 2)
        << workers << " workers: " << slow.count() << " ns beside " << equal.count();
  }
}

TEST(Portions, EqualWorkersDoNoWorkTwice) {
  VirtualBatches run(32, std::vector<double>(4, 1), 0.3);
  EXPECT_LT(mean_of(run.run(50)), milliseconds(10) * 10) << "8 portions each, and a rest";
  EXPECT_EQ(run.copies, 0);
}

}  // namespace
}  // namespace stormo::protocol
