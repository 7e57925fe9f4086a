// Steps that commit before they update.
#include <gtest/gtest.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/plan/step_plan.h>

#include <algorithm>
#include <cstddef>
#include <string>
#include <vector>

namespace stormo::analysis {
namespace {

plan::StepPlan parsed(const std::vector<std::string>& actions, const std::string& words) {
  std::string text = "step_plan v2 test\nmesh dp=2\nstep micro_batches=1" + words +
                     "\nsegment 0: first flops=8\n  parameter 0: a elements=8 type=float32\nstate "
                     "parameters replicate\n"
                     "state frozen replicate\nstate optimizer replicate\n";
  for (std::size_t i = 0; i < actions.size(); ++i) {
    text += "action " + std::to_string(i) + ": " + actions[i] + "\n";
  }
  auto plan = plan::parse_step_plan(text);
  EXPECT_TRUE(plan.ok()) << plan.status().to_string();
  return std::move(plan).value();
}

TEST(StepVerify, NothingIsUpdatedBeforeItIsCommitted) {
  const std::vector<std::string> good = {
      "load", "forward 0-0", "loss",   "backward 0-0", "all_reduce 0-0 over dp",
      "norm", "clip",        "commit", "update 0-0",   "agree"};
  ASSERT_TRUE(verify(parsed(good, " clipped commits")).ok())
      << verify(parsed(good, " clipped commits")).to_string();
  const auto message = [&](std::size_t from, std::size_t to, const std::string& words) {
    std::vector<std::string> actions = good;
    const std::string moved = actions[from];
    actions.erase(actions.begin() + static_cast<std::ptrdiff_t>(from));
    if (to < good.size()) actions.insert(actions.begin() + static_cast<std::ptrdiff_t>(to), moved);
    return verify(parsed(actions, words)).message();
  };
  constexpr std::size_t kNowhere = 99;
  const std::string words = " clipped commits";
  EXPECT_EQ(message(7, kNowhere, words),
            "action 7 (update 0-0: a): comes before the step is committed");
  EXPECT_EQ(message(7, 8, words), "action 7 (update 0-0: a): comes before the step is committed");
  EXPECT_EQ(message(7, 6, words), "action 6 (commit): comes before the gradients are clipped");
  EXPECT_EQ(message(5, 5, " clipped"),
            "action 7 (commit): commits, but the step says nothing of it");
  // what is not averaged yet would be lost with the rank that has it
  std::vector<std::string> early = {"load",         "forward 0-0", "loss",
                                    "backward 0-0", "commit",      "all_reduce 0-0 over dp",
                                    "update 0-0",   "agree"};
  EXPECT_EQ(verify(parsed(early, " commits")).message(),
            "action 4 (commit): needs reduced gradients, but the gradients of parameter 0 (a) are "
            "partial over dp");
}

}  // namespace
}  // namespace stormo::analysis
