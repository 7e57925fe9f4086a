// Downpour SGD in virtual time: workers that do not read and push in every step.
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/virtual_servers.h>

namespace stormo::protocol {
namespace {

VirtualOutcome outcome_of(const VirtualCluster& cluster, const VirtualEvents& events = {}) {
  return run_virtual(cluster, *make_policy({}, cluster.workers).take_or_throw(), events)
      .take_or_throw();
}

// With a read every k steps: workers - 1 + workers (k - 1) / 2.
TEST(Downpour, MeanStalenessWithRareReads) {
  for (const int k : {2, 5}) {
    const VirtualOutcome run =
        outcome_of({.workers = 6, .steps = 6000, .read_every = k, .latency = Duration{}});
    const double law = 5 + 6 * (k - 1) / 2.0;
    EXPECT_NEAR(run.servers[0].staleness().mean(), law, 0.01 * law) << "read every " << k;
  }
}

TEST(Downpour, NumbersOfReadsAndPushes) {
  for (const int steps : {1, 5, 6, 7}) {
    const VirtualOutcome run =
        outcome_of({.workers = 2, .steps = steps, .read_every = 2, .push_every = 3});
    EXPECT_EQ(run.reads[0], 1 + (steps - 1) / 2);
    EXPECT_EQ(run.pushes[1], 1 + (steps - 1) / 3);
    EXPECT_EQ(run.servers[0].worker(1).pushes, static_cast<std::uint64_t>(run.pushes[1]));
  }
}

TEST(Downpour, ReadsBeginPeriodsAndPushesEndThem) {
  for (const bool pooled : {false, true}) {
    std::string order;
    const VirtualEvents events{.read =
                                   [&](int, int) {
                                     order += 'r';
                                     return Status();
                                   },
                               .computed =
                                   [&](int, std::int64_t step, Duration) {
                                     order += std::to_string(step + 1);
                                     return Status();
                                   },
                               .pushed =
                                   [&](int, const Push&, const PushDecision&) {
                                     order += 'p';
                                     return Status();
                                   },
                               .left = {}};
    (void)outcome_of({.workers = 1, .steps = 7, .pooled = pooled, .read_every = 2, .push_every = 3},
                     events);
    EXPECT_EQ(order, "r12r3p4r56pr7p");
  }
}

/// Downpour SGD of a line: copies of workers are plain SGD, the server is Adagrad. The samples of a
/// worker are random, and no two are alike.
class Line {
 public:
  explicit Line(int workers) : workers_(static_cast<std::size_t>(workers)) {}

  VirtualEvents events() {
    return {.read =
                [this](int w, int) {
                  of(w).copy = centre_;
                  return Status();
                },
            .computed =
                [this](int w, std::int64_t, Duration) {
                  compute(of(w));
                  return Status();
                },
            .pushed =
                [this](int, const Push& push, const PushDecision&) {
                  update(of(push.worker));
                  return Status();
                },
            .left = {}};
  }
  /// Mean of the squared error over x from -1 to 1.
  double loss() const {
    const double slope = centre_[0] - kTrue[0], offset = centre_[1] - kTrue[1];
    return slope * slope / 3 + offset * offset;
  }

 private:
  using Values = std::array<double, 2>;  // slope and offset
  static constexpr Values kTrue = {3, -2};
  static constexpr double kRate = 0.05;

  struct Worker {
    Values copy{}, sum{};
  };
  Worker& of(int w) { return workers_[static_cast<std::size_t>(w)]; }
  void compute(Worker& me) {
    const double x = 2 * rng_.uniform() - 1;
    const double error = (me.copy[0] - kTrue[0]) * x + me.copy[1] - kTrue[1];
    const Values gradient = {2 * error * x, 2 * error};
    for (std::size_t i = 0; i < 2; ++i) {
      me.copy[i] -= kRate * gradient[i];
      me.sum[i] += gradient[i];
    }
  }
  void update(Worker& me) {
    for (std::size_t i = 0; i < 2; ++i) {
      squares_[i] += me.sum[i] * me.sum[i];
      if (squares_[i] > 0) centre_[i] -= 0.5 * me.sum[i] / std::sqrt(squares_[i]);
    }
    me.sum = {};
  }

  std::vector<Worker> workers_;
  Values centre_{}, squares_{};
  Rng rng_{7, "line"};
};

// Dean et al. 2012: 8 replicas with pulls and pushes now and then, of which one is lost.
TEST(Downpour, ReachesTheLossWithoutACrashedWorker) {
  for (const auto& [fetch, push] : {std::pair{1, 1}, {4, 4}, {6, 3}}) {
    VirtualCluster cluster{.workers = 8,
                           .steps = 240,
                           .read_every = fetch,
                           .push_every = push,
                           .crashes = {{.worker = 3, .at = std::chrono::milliseconds(605)}}};
    Line line(8);
    const double before = line.loss();
    const VirtualOutcome run = outcome_of(cluster, line.events());
    EXPECT_NEAR(static_cast<double>(run.steps[3]), 60, 5);
    EXPECT_EQ(run.steps[4], 240);
    EXPECT_LT(line.loss(), before * 1e-6) << fetch << ", " << push;
  }
}

}  // namespace
}  // namespace stormo::protocol
