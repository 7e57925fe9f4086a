#include <gtest/gtest.h>

#include <chrono>
#include <future>
#include <string>

#include "tests/unit/train/plan_pairs.h"

namespace stormo::train {
namespace {

using test::PlanRank;
using test::PlanRun;
using test::run_by_hand;
using test::written;

class RunnerConformance : public ::testing::TestWithParam<test::Pair> {};

TEST_P(RunnerConformance, DoesWhatIsWrittenAndTrainsAlike) {
  test::expect_trains_alike(GetParam());
}

INSTANTIATE_TEST_SUITE_P(ByHand, RunnerConformance, ::testing::ValuesIn(test::pairs()),
                         [](const auto& test) { return test.param.name; });

// --- asynchronous ------------------------------------------------------------------------------

// Rank 1 does not go on to its loss until rank 0 has done its whole backward. So rank 0 must not
// have waited for any of its reductions, which rank 1 joins later.
TEST(RunnerConformanceAsync, ReductionsDoNotHoldUpBackward) {
  PlanRun run =
      run_by_hand(written("dp=2",
                          "load\nsum_weights async\nforward 0-0\nforward 1-2\nloss\n"
                          "backward 1-2\nall_reduce 2-5 over dp async\n"
                          "backward 0-0\nall_reduce 0-1 over dp async\nupdate 0-5\nagree"));
  run.batches.resize(1);
  std::promise<void> backward;
  std::future<void> is_done = backward.get_future();
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    if (rank.rank() == 0) {
      rank.done = [&](const plan::Action& a) {
        if (to_text(a) == "backward 0-0") backward.set_value();
      };
    } else {
      rank.task.loss = [&](const torch::Tensor& output, const torch::Tensor& target) {
        EXPECT_EQ(is_done.wait_for(std::chrono::seconds(20)), std::future_status::ready);
        return model::cross_entropy(output, target);
      };
    }
    rank.steps(1);
  });
}

}  // namespace
}  // namespace stormo::train
