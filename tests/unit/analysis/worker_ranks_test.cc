// Plans of workers of servers that are several ranks: what they lack, cost and take.
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;

/// Two workers of two ranks each, of two parameters with 4800 float32 numbers together.
StepPlan workers_of_two() {
  StepPlan p;
  p.mesh = {{{"dp", 2}, {"worker", 2}}};
  p.model.segments = {
      {.name = "first", .parameters = {{"a", 1600}}, .flops_per_sample = 0, .borrowed = {}},
      {.name = "second", .parameters = {{"b", 3200}}, .flops_per_sample = 0, .borrowed = {}}};
  p.parameters = p.optimizer_state = {Placement::kRemote, Placement::kRemote};
  p.frozen = {Placement::kReplicate, Placement::kReplicate};
  p.clipped = true;
  p.actions = {{.kind = ActionKind::kLoad},                                             // 0
               {.kind = ActionKind::kPull, .range = {0, 1}, .axes = {"dp", "worker"}},  // 1
               {.kind = ActionKind::kForward, .range = {0, 1}},                         // 2
               {.kind = ActionKind::kLoss},                                             // 3
               {.kind = ActionKind::kBackward, .range = {0, 1}},                        // 4
               {.kind = ActionKind::kSumWeights},                                       // 5
               {.kind = ActionKind::kAllReduce, .range = {0, 1}, .axes = {"worker"}},   // 6
               {.kind = ActionKind::kNorm},                                             // 7
               {.kind = ActionKind::kClip},                                             // 8
               {.kind = ActionKind::kPush, .range = {0, 1}, .axes = {"dp"}},            // 9
               {.kind = ActionKind::kAgree}};                                           // 10
  return p;
}

struct Case {
  std::string message;
  std::function<void(StepPlan&)> change;
};
std::function<void(StepPlan&)> without(int i) {
  return [i](StepPlan& p) { p.actions.erase(p.actions.begin() + i); };
}
std::function<void(StepPlan&)> over(std::size_t i, std::vector<std::string> axes) {
  return [i, axes = std::move(axes)](StepPlan& p) { p.actions[i].axes = axes; };
}

TEST(WorkerRanks, VerifyNamesWhatTheyLack) {
  const std::string other =
      "is for values that the ranks hold together, but the parameters are remote over dp; workers "
      "use pull and push";
  const std::string axes = "but the mesh has other axes; the workers are its only one";
  const std::string partial = "the gradients of parameter 0 (a) are partial over worker";
  ASSERT_TRUE(verify(workers_of_two()).ok()) << verify(workers_of_two()).to_string();
  const std::vector<Case> cases = {
      {"action 6 (norm): needs reduced gradients, but " + partial, without(6)},
      {"action 5 (all_reduce 0-1 over worker: a .. b): comes before the weights are added up",
       without(5)},
      {"action 9 (agree): no action pushes the gradients of parameter 0 (a)", without(9)},
      {"no action lets the ranks agree on the end of the step", without(10)},
      {"action 1 (pull 0-1 over dp: a .. b): gives all ranks of a worker the same version: name "
       "all axes",
       over(1, {"dp"})},
      {"action 9 (push 0-1 over worker: a .. b): is of whole workers, which are the axis 'dp'",
       over(9, {"worker"})},
      {"action 6 (all_reduce 0-1 over dp: a .. b): " + other, over(6, {"dp"})},
      {"action 6 (all_reduce 0-1 over dp,worker: a .. b): " + other, over(6, {"dp", "worker"})},
      {"state parameters: remote over dp, " + axes,
       [](StepPlan& p) { p.mesh.axes[1].name = "shard"; }},
      {"state parameters: over the axis of workers and then 'worker', whose ranks are one, neither "
       "remote, nor diverged and then replicated",
       [](StepPlan& p) { p.parameters[1] = p.optimizer_state[1] = Placement::kReplicate; }}};
  for (const Case& c : cases) {
    StepPlan p = workers_of_two();
    c.change(p);
    EXPECT_EQ(verify(p).code(), Code::kBadPlan);
    EXPECT_EQ(verify(p).message(), c.message);
  }
}

TEST(WorkerRanks, UpdateACopyWithTheirAverage) {
  StepPlan p = workers_of_two();
  p.clipped = false;
  p.actions.erase(p.actions.begin() + 7, p.actions.begin() + 9);
  p.actions.insert(p.actions.begin() + 7, {.kind = ActionKind::kUpdate, .range = {0, 1}});
  p.actions[1].every = p.actions[8].every = 4;
  EXPECT_TRUE(verify(p).ok()) << verify(p).to_string();
  std::swap(p.actions[6], p.actions[7]);
  EXPECT_EQ(verify(p).message(),
            "action 6 (update 0-1: a .. b): needs reduced gradients, but the gradients of "
            "parameter 0 (a) are partial over worker");
}

TEST(WorkerRanks, SendEachOtherWhatTheFirstPullsAndTheirGradients) {
  const TrafficOf whole_buffer = [](const std::vector<int>& hosts, const Collective& c) {
    return Result<std::vector<Traffic>>(
        std::vector<Traffic>(static_cast<std::size_t>(hosts[0]), {.in_host = c.bytes()}));
  };
  const auto served = cost(workers_of_two(), {4}, {.agreed_numbers = 7}, whole_buffer);
  ASSERT_TRUE(served.ok());
  EXPECT_EQ(served->pulled, 4 * 4800) << "of one worker";
  EXPECT_EQ(served->pushed, 4 * 4800);
  ASSERT_EQ(served->axes.size(), 1u);
  EXPECT_EQ(served->axes[0].axes, std::vector<std::string>{"worker"});
  EXPECT_EQ(served->axes[0].collectives, 4);
  // gradients have a flag for each parameter
  const std::int64_t given = 4 * 4800, averaged = 4 * (4800 + 2), weights = 8, agreed = 8 * 7;
  EXPECT_EQ(served->axes[0].payload, given + weights + averaged + agreed);
  EXPECT_EQ(served->ranks[3].in_host, given + weights + averaged + agreed);
}

// A segment takes a second forward and two backward, the large collectives 0.5 s.
TEST(WorkerRanks, WaitForTheFirstOneThatPulls) {
  const StepTimes times{.compute =
                            [](Rank, const Action& a) {
                              if (a.kind == ActionKind::kForward) return 1.0 * a.range.size();
                              return a.kind == ActionKind::kBackward ? 2.0 * a.range.size() : 0.0;
                            },
                        .collective =
                            [](const std::vector<int>&, const Collective& c) {
                              return Result<double>(c.elements > 100 ? 0.5 : 0.0);
                            },
                        .servers = {.latency_s = 3, .seconds_per_byte = 0}};
  const auto s = simulate(workers_of_two(), {4}, {}, times);
  ASSERT_TRUE(s.ok());
  EXPECT_DOUBLE_EQ(s->seconds, 3 + 0.5 + 6 + 0.5 + 3) << "pull, what others get, compute, average";
  int exchanges = 0;
  for (const SimulatedAction& a : s->timeline) {
    if (a.lane != Lane::kCommunication || a.end - a.start < 3) continue;
    ++exchanges;
    EXPECT_EQ(a.rank % 2, 0);
  }
  EXPECT_EQ(exchanges, 4);
}

}  // namespace
}  // namespace stormo::analysis
