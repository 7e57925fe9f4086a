// Downpour SGD in virtual time: workers that do not read and push in every step.
#include <cstdint>

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
    const std::int64_t at_the_end = (steps - 1) % 3 == 0 ? 0 : 1;
    EXPECT_EQ(run.pushes[1], 1 + (steps - 1) / 3 + at_the_end);
    EXPECT_EQ(run.servers[0].worker(1).pushes, static_cast<std::uint64_t>(run.pushes[1]));
  }
}

}  // namespace
}  // namespace stormo::protocol
