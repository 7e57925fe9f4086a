// Downpour SGD in virtual time: workers that do not read and push in every step.
#include <chrono>
#include <cstdint>
#include <string>

#include <gtest/gtest.h>

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

// Not a sum that is no number any more.
TEST(VirtualTime, OfDecadesIsAnError) {
  using std::chrono::hours;
  for (const VirtualCluster& cluster :
       {VirtualCluster{.workers = 1, .steps = 100, .compute = hours(200'000)},
        VirtualCluster{.workers = 2, .steps = 100, .compute = hours(10), .slowness = {1e6}}}) {
    const auto run = run_virtual(cluster, *make_policy({}, cluster.workers).take_or_throw(), {});
    EXPECT_EQ(run.status().code(), Code::kInvalidArgument);
    EXPECT_NE(run.status().message().find("over 30 years"), std::string::npos);
  }
}

}  // namespace
}  // namespace stormo::protocol
