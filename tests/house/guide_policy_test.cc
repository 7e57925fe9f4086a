// The example of docs/guides/add-a-policy.md.
#include <algorithm>

#include <stormo/protocol/server/policy.h>
#include <stormo/protocol/server/virtual_servers.h>

#include <gtest/gtest.h>

namespace stormo::protocol {

/// An update is the average of the first `quorum` gradients of its version.
class Quorum final : public Policy {
 public:
  explicit Quorum(int quorum) : quorum_(quorum) {}
  std::string_view name() const override { return "quorum"; }
  Status check(int workers) const override {
    if (quorum_ >= 1 && quorum_ <= workers) return {};
    return invalid_argument("quorum: must be from 1 to the number of workers");
  }
  bool accepts(const ShardState& state, const Push& push) const override {
    return state.worker(push.worker).version_read == state.version;
  }
  bool averages() const override { return true; }
  bool complete(const ShardState& state) const override {
    return state.pending >= std::min(quorum_, std::max(1, state.active_workers()));
  }

 private:
  int quorum_;
};

}  // namespace stormo::protocol

namespace stormo::protocol {
namespace {

TEST(Quorum, UsesNoStaleGradientAndWaitsForNobody) {
  VirtualCluster cluster{.workers = 5, .steps = 200, .jitter = 0.5};
  cluster.slowness = {1, 1, 1, 1, 10};
  const VirtualOutcome run = run_virtual(cluster, Quorum(3)).take_or_throw();
  EXPECT_EQ(run.servers[0].staleness().max, 0u);
  for (const Duration waited : run.waited) EXPECT_EQ(waited, Duration(0));
  // in 20 of its 200 steps the others are there, and it is late
  EXPECT_GE(run.servers[0].worker(4).dropped, 15u);
}

TEST(Quorum, GoesOnWithoutCrashedWorkers) {
  VirtualCluster cluster{.workers = 4, .steps = 50};
  for (const int w : {0, 1, 2}) cluster.crashes.push_back({w, std::chrono::milliseconds(70 * w)});
  const VirtualOutcome run = run_virtual(cluster, Quorum(3)).take_or_throw();
  EXPECT_EQ(run.steps[3], 50);
}

}  // namespace
}  // namespace stormo::protocol
