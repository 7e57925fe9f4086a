// Steps whose ranks have parameters of their own: what verify says of averages, and what they cost.
#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/verify/step_verify.h>

#include "diverged_plan.h"

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;

/// Two segments of a parameter each, on two ranks that average in every 4th step.
StepPlan averaging() {
  StepPlan p = diverged_plan(2);
  p.actions = {{.kind = ActionKind::kLoad},                                                  // 0
               {.kind = ActionKind::kForward, .range = {0, 1}},                              // 1
               {.kind = ActionKind::kLoss},                                                  // 2
               {.kind = ActionKind::kBackward, .range = {0, 1}},                             // 3
               {.kind = ActionKind::kUpdate, .range = {0, 1}},                               // 4
               {.kind = ActionKind::kAverage, .range = {1, 1}, .axes = {"dp"}, .every = 4},  // 5
               {.kind = ActionKind::kAverage, .range = {0, 0}, .axes = {"dp"}, .every = 4},  // 6
               {.kind = ActionKind::kAgree, .every = 4}};                                    // 7
  return p;
}

std::string said_of(const std::function<void(StepPlan&)>& change) {
  StepPlan p = averaging();
  change(p);
  return verify(p).message();
}

TEST(StepAverages, VerifyNamesWhatIsMissingOrOutOfPlace) {
  ASSERT_TRUE(verify(averaging()).ok()) << verify(averaging()).to_string();
  EXPECT_EQ(said_of([](StepPlan& p) { p.actions.erase(p.actions.begin() + 5); }),
            "action 6 (agree every 4): no action averages parameter 1 (b), which diverges");
  EXPECT_EQ(said_of([](StepPlan& p) { std::swap(p.actions[6], p.actions[7]); }),
            "action 6 (agree every 4): no action averages parameter 0 (a), which diverges");
  EXPECT_EQ(
      said_of([](StepPlan& p) { std::swap(p.actions[4], p.actions[5]); }),
      "action 4 (average 1-1 over dp every 4: b): averages parameter 1 (b) before its update");
  EXPECT_EQ(said_of([](StepPlan& p) {
              p.actions[6].range = {0, 1};
            }),
            "action 6 (average 0-1 over dp every 4: a .. b): averages a second time");
  EXPECT_EQ(
      said_of([](StepPlan& p) { p.actions.erase(p.actions.begin() + 4); }),
      "action 4 (average 1-1 over dp every 4: b): averages parameter 1 (b) before its update");
}

TEST(StepAverages, AnOuterUpdateIsOfAveragesOnceAndOfAllOfThem) {
  const auto outer = [](StepPlan& p) {
    p.actions.insert(p.actions.begin() + 7,
                     {.kind = ActionKind::kOuterUpdate, .range = {0, 1}, .every = 4});
  };
  EXPECT_EQ(said_of(outer), "");
  EXPECT_EQ(said_of([&](StepPlan& p) {
              outer(p);
              std::swap(p.actions[6], p.actions[7]);
            }),
            "action 6 (outer_update 0-1 every 4: a .. b): comes before the average of parameter 0 "
            "(a)");
  EXPECT_EQ(said_of([&](StepPlan& p) {
              outer(p);
              p.actions[7].every = 8;
            }),
            "action 7 (outer_update 0-1 every 8: a .. b): comes in other steps than the averages");
  EXPECT_EQ(said_of([&](StepPlan& p) {
              outer(p);
              outer(p);
            }),
            "action 8 (outer_update 0-1 every 4: a .. b): updates parameter 0 (a) a second time");
  EXPECT_EQ(said_of([&](StepPlan& p) {
              outer(p);
              p.actions[7].range = {1, 1};
            }),
            "action 8 (agree every 4): no outer_update is of parameter 0 (a)");
  EXPECT_EQ(said_of([&](StepPlan& p) {
              outer(p);
              p.actions[7].axes = {"dp"};
            }),
            "action 7 (outer_update 0-1 over dp every 4: a .. b): takes no axis");
  StepPlan remote = averaging();
  outer(remote);
  remote.parameters = remote.optimizer_state = {Placement::kRemote};
  EXPECT_FALSE(verify(remote).ok());
}

// The state of the optimizer stays, and the outer update sends nothing.
TEST(StepAverages, OfParametersAloneMoveTheseAndTheWeightOfARank) {
  StepPlan p = averaging();
  p.actions[5] = {
      .kind = ActionKind::kAverageParameters, .range = {0, 1}, .axes = {"dp"}, .every = 4};
  p.actions[6] = {.kind = ActionKind::kOuterUpdate, .range = {0, 1}, .every = 4};
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  const std::vector<Collective> moved = collectives_of(p, 5, {.averaged_slots = 2});
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].bytes(), 8);
  EXPECT_EQ(moved[1].bytes(), 40 * 4);
  EXPECT_TRUE(collectives_of(p, 6, {.averaged_slots = 2}).empty());
  const std::int64_t before = memory(averaging(), {.optimizer_numbers = 2}).between_steps.total();
  EXPECT_EQ(memory(p, {.optimizer_numbers = 2}).between_steps.total(), before + 2 * 40 * 4)
      << "what the period began with, and a momentum";
}

/// The ranks of each of two hosts in every 2nd step, all in every 4th.
StepPlan with_hosts() {
  StepPlan p = averaging();
  p.mesh = plan::Mesh{{{"dp", 2}, {"host", 2}}};
  p.parameters = p.optimizer_state = {Placement::kDiverged, Placement::kDiverged};
  p.frozen = {Placement::kReplicate, Placement::kReplicate};
  p.actions[5] = {.kind = ActionKind::kAverage, .range = {0, 1}, .axes = {"host"}, .every = 2};
  p.actions[6] = {
      .kind = ActionKind::kAverage, .range = {0, 1}, .axes = {"dp", "host"}, .every = 4};
  return p;
}

TEST(StepAverages, AmongSomeRanksComeOnceBetweenTheUpdateAndTheAverageOfAll) {
  const auto said = [](const std::function<void(StepPlan&)>& change) {
    StepPlan p = with_hosts();
    change(p);
    return verify(p).message();
  };
  EXPECT_EQ(said([](StepPlan&) {}), "");
  EXPECT_EQ(said([](StepPlan& p) { p.actions.erase(p.actions.begin() + 5); }), "");
  EXPECT_EQ(said([](StepPlan& p) { p.actions.erase(p.actions.begin() + 6); }),
            "action 6 (agree every 4): no action averages parameter 0 (a), which diverges");
  EXPECT_EQ(said([](StepPlan& p) { std::swap(p.actions[4], p.actions[5]); }),
            "action 4 (average 0-1 over host every 2: a .. b): averages parameter 0 (a) before its "
            "update");
  EXPECT_EQ(said([](StepPlan& p) { std::swap(p.actions[5], p.actions[6]); }),
            "action 6 (average 0-1 over host every 2: a .. b): averages parameter 0 (a) among some "
            "ranks, and all have averaged it already");
  EXPECT_EQ(said([](StepPlan& p) { p.actions.insert(p.actions.begin() + 5, p.actions[5]); }),
            "action 6 (average 0-1 over host every 2: a .. b): averages among some a second time");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[5].every = 3; }),
            "action 7 (agree every 4): comes in other steps than the averages among some ranks, "
            "which are for every 3 steps");
  EXPECT_EQ(said([](StepPlan& p) {
              p.actions[5].kind = ActionKind::kAverageParameters;
              p.actions[5].asynchronous = true;
            }),
            "action 5 (average_parameters 0-1 over host async every 2: a .. b): averages among "
            "some ranks, which wait for all values, as they are");
}

/// Parameters in every 4th step, slots in every 8th and 12th.
StepPlan with_slots() {
  StepPlan p = averaging();
  p.actions[5] = {
      .kind = ActionKind::kAverageParameters, .range = {0, 1}, .axes = {"dp"}, .every = 4};
  p.actions[6] = {
      .kind = ActionKind::kAverageState, .range = {0, 1}, .axes = {"dp"}, .every = 8, .slot = 0};
  p.actions.insert(p.actions.begin() + 7, p.actions[6]);
  p.actions[7].slot = 1;
  p.actions[7].every = 12;
  return p;
}

TEST(StepAverages, OfASlotComeOnceBehindItsUpdateInStepsThatAverage) {
  const auto said = [](const std::function<void(StepPlan&)>& change) {
    StepPlan p = with_slots();
    change(p);
    return verify(p).message();
  };
  EXPECT_EQ(said([](StepPlan&) {}), "");
  EXPECT_EQ(said([](StepPlan& p) { std::swap(p.actions[5], p.actions[7]); }), "")
      << "they have no order";
  EXPECT_EQ(said([](StepPlan& p) { std::rotate(&p.actions[4], &p.actions[6], &p.actions[7]); }),
            "action 4 (average_state 0-1 slot 0 over dp every 8: a .. b): averages the state of "
            "parameter 0 (a) before its update");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[7].slot = 0; }),
            "action 7 (average_state 0-1 slot 0 over dp every 12: a .. b): averages the state of "
            "parameter 0 (a) a second time");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[5].kind = ActionKind::kAverage; }),
            "action 6 (average_state 0-1 slot 0 over dp every 8: a .. b): averages the state of "
            "parameter 0 (a) a second time");
  EXPECT_EQ(said([](StepPlan& p) {
              std::swap(p.actions[5], p.actions[6]);
              p.actions[6].kind = ActionKind::kAverage;
            }),
            "action 6 (average 0-1 over dp every 4: a .. b): averages the state of parameter 0 (a) "
            "a second time");
  EXPECT_EQ(said([](StepPlan& p) {
              p.actions[7].range = {1, 1};
            }),
            "action 8 (agree every 4): a slot of the optimizer is averaged, but not that of "
            "parameter 0 (a)");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[7].every = 6; }),
            "action 8 (agree every 4): comes in other steps than the averages of slot 1 of the "
            "optimizer, which are for every 6 steps");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[7].slot = -1; }),
            "action 7 (average_state 0-1 over dp every 12: a .. b): cannot be of slot -1 of the "
            "optimizer");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[5].slot = 2; }),
            "action 5 (average_parameters 0-1 slot 2 over dp every 4: a .. b): cannot be of slot 2 "
            "of the optimizer");
  EXPECT_EQ(said([](StepPlan& p) { p.actions[7].axes.clear(); }),
            "action 7 (average_state 0-1 slot 1 every 12: a .. b): needs an axis");
  StepPlan equal = with_slots();
  equal.parameters = equal.optimizer_state = {Placement::kReplicate};
  equal.actions.erase(equal.actions.begin() + 5);
  EXPECT_EQ(verify(equal).message(),
            "action 5 (average_state 0-1 slot 0 over dp every 8: a .. b): the weights of parameter "
            "0 (a) are replicate over dp between steps");
  StepPlan remote = with_slots();
  remote.parameters = remote.optimizer_state = {Placement::kRemote};
  EXPECT_FALSE(verify(remote).ok());
}

TEST(StepAverages, OfASlotMoveItAndStepsAndAStepOnAverageAsOftenAsTheyCome) {
  const StepPlan p = with_slots();
  const StepSizes sizes{.averaged_slots = 2};
  std::vector<std::vector<std::int64_t>> bytes;
  for (const std::size_t i : {5, 6, 7}) {
    bytes.emplace_back();
    for (const Collective& c : collectives_of(p, i, sizes)) bytes.back().push_back(c.bytes());
  }
  // the weight of a rank, and of a slot the steps of two parameters; 40 numbers in float32
  EXPECT_EQ(bytes, (std::vector<std::vector<std::int64_t>>{{8, 160}, {24, 160}, {24, 160}}));
  const auto all_of_it = [](const std::vector<int>&, const Collective& c) {
    return Result<std::vector<Traffic>>(std::vector<Traffic>(2, {.between_hosts = c.bytes()}));
  };
  const StepCost sent = cost(p, {1, 1}, sizes, all_of_it).take_or_throw();
  EXPECT_EQ(sent.ranks[1].between_hosts, 168 + 184 + 184) << "where all are due";
  ASSERT_EQ(sent.mean.size(), 2u);
  EXPECT_NEAR(24 * sent.mean[1].between_hosts, 6 * 168 + 3 * 184 + 2 * 184, 1e-9);
  EXPECT_EQ(sent.mean[1].in_host, 0);
}

/// A worker that pulls in every 4th step and pushes in every 2nd.
StepPlan worker_with_copy() {
  StepPlan p = averaging();
  p.parameters = p.optimizer_state = {Placement::kRemote};
  p.actions = {{.kind = ActionKind::kLoad},                                                // 0
               {.kind = ActionKind::kPull, .range = {0, 1}, .axes = {"dp"}, .every = 4},   // 1
               {.kind = ActionKind::kForward, .range = {0, 1}},                            // 2
               {.kind = ActionKind::kLoss},                                                // 3
               {.kind = ActionKind::kBackward, .range = {0, 1}},                           // 4
               {.kind = ActionKind::kUpdate, .range = {0, 1}},                             // 5
               {.kind = ActionKind::kPush, .range = {0, 1}, .axes = {"dp"}, .every = 2}};  // 6
  return p;
}

TEST(StepAverages, AWorkerUpdatesItsCopyBeforeItsPush) {
  StepPlan p = worker_with_copy();
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  std::swap(p.actions[5], p.actions[6]);
  EXPECT_EQ(verify(p).message(),
            "action 5 (push 0-1 over dp every 2: a .. b): comes before the update of the worker's "
            "copy of parameter 0 (a)");
  p = worker_with_copy();
  p.actions.insert(p.actions.begin() + 5, p.actions[5]);
  EXPECT_EQ(verify(p).message(),
            "action 6 (update 0-1: a .. b): updates a worker's copy a second time");
  p = worker_with_copy();
  p.actions[1].every = p.actions[6].every = 1;
  EXPECT_EQ(verify(p).message(),
            "action 5 (update 0-1: a .. b): the parameters are remote over dp; the servers update "
            "them, after a push");
}

/// A worker whose parameters servers average in every 4th step.
StepPlan averaged_by_servers() {
  StepPlan p = worker_with_copy();
  p.actions[6] = {.kind = ActionKind::kAverage, .range = {0, 1}, .axes = {"dp"}, .every = 4};
  return p;
}

TEST(StepAverages, ServersGetTheUpdatedCopyOnce) {
  StepPlan p = averaged_by_servers();
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  std::swap(p.actions[5], p.actions[6]);
  EXPECT_EQ(verify(p).message(),
            "action 5 (average 0-1 over dp every 4: a .. b): averages parameter 0 (a) before its "
            "update");
  p = averaged_by_servers();
  p.actions[6].kind = ActionKind::kAverageParameters;
  EXPECT_EQ(
      verify(p).message(),
      "action 6 (average_parameters 0-1 over dp every 4: a .. b): leaves the optimizer's state "
      "to each rank, and servers average it, too");
  p = averaged_by_servers();
  p.actions.push_back(p.actions[6]);
  EXPECT_EQ(verify(p).message(),
            "action 7 (average 0-1 over dp every 4: a .. b): averages a second time");
  p = averaged_by_servers();
  p.actions[6].range = {0, 0};
  EXPECT_EQ(verify(p).message(), "no action averages parameter 1 (b)");
  p = averaged_by_servers();
  p.actions[1].every = p.actions[6].every = 1;
  EXPECT_TRUE(verify(p).ok()) << "a worker has a copy in any case";
}

TEST(StepAverages, ServersGetParametersSlotsAndNumbersOfSteps) {
  const StepPlan p = averaged_by_servers();
  for (const std::size_t i : {1, 6}) {
    // weights and two slots in float32; a number for each parameter
    EXPECT_EQ(server_bytes(p, p.actions[i], {.averaged_slots = 2}), 3 * 40 * 4 + 2 * 8);
    EXPECT_TRUE(collectives_of(p, i, {}).empty());
  }
  const MemorySizes sizes{.optimizer_numbers = 2};
  EXPECT_EQ(memory(p, sizes).between_steps.optimizer_state, 2 * 40 * 4) << "the worker's own";
  EXPECT_EQ(memory(p, sizes).between_steps.gradients, 0);
  EXPECT_EQ(memory(worker_with_copy(), sizes).between_steps.gradients, 40 * 4) << "sums of them";
}

/// A worker that exchanges with a centre in every 4th step.
StepPlan drawn_to_centre() {
  StepPlan p = averaging();
  p.actions = {
      {.kind = ActionKind::kLoad},                                                         // 0
      {.kind = ActionKind::kForward, .range = {0, 1}},                                     // 1
      {.kind = ActionKind::kLoss},                                                         // 2
      {.kind = ActionKind::kBackward, .range = {0, 1}},                                    // 3
      {.kind = ActionKind::kElasticAverage, .range = {1, 1}, .axes = {"dp"}, .every = 4},  // 4
      {.kind = ActionKind::kElasticAverage, .range = {0, 0}, .axes = {"dp"}, .every = 4},  // 5
      {.kind = ActionKind::kUpdate, .range = {0, 1}}};                                     // 6
  return p;
}

TEST(StepAverages, AWorkerExchangesBetweenItsGradientAndItsUpdate) {
  const auto said = [](const std::function<void(StepPlan&)>& change) {
    StepPlan p = drawn_to_centre();
    change(p);
    return verify(p).message();
  };
  ASSERT_TRUE(verify(drawn_to_centre()).ok()) << verify(drawn_to_centre()).to_string();
  EXPECT_EQ(said([](StepPlan& p) { std::swap(p.actions[3], p.actions[4]); }),
            "action 3 (elastic_average 1-1 over dp every 4: b): comes before the gradients of "
            "parameter 1 "
            "(b)");
  EXPECT_EQ(said([](StepPlan& p) { std::swap(p.actions[5], p.actions[6]); }),
            "action 6 (elastic_average 0-0 over dp every 4: a): comes after the update of "
            "parameter 0 (a)");
  EXPECT_EQ(said([](StepPlan& p) { p.actions.erase(p.actions.begin() + 5); }),
            "no action exchanges parameter 0 (a), which diverges");
  EXPECT_EQ(said([](StepPlan& p) {
              p.actions[5].range = {0, 1};
            }),
            "action 5 (elastic_average 0-1 over dp every 4: a .. b): exchanges a second time");
  EXPECT_EQ(
      said([](StepPlan& p) { p.actions[5].every = 2; }),
      "action 5 (elastic_average 0-0 over dp every 2: a): comes in other steps than exchanges "
      "before");
  EXPECT_EQ(said([](StepPlan& p) { p.actions.push_back({.kind = ActionKind::kAgree}); }),
            "action 7 (agree): lets ranks wait for each other, but those that exchange with a "
            "centre do not");
  EXPECT_EQ(said([](StepPlan& p) { p.parameters = p.optimizer_state = {Placement::kReplicate}; }),
            "action 4 (elastic_average 1-1 over dp every 4: b): the weights of parameter 1 (b) are "
            "replicate over dp between steps");
  EXPECT_EQ(
      said([](StepPlan& p) {
        p.micro_batches = 2;
        p.actions.insert(p.actions.begin() + 6,
                         {{.kind = ActionKind::kForward, .range = {0, 1}, .micro_batch = 1},
                          {.kind = ActionKind::kLoss, .micro_batch = 1},
                          {.kind = ActionKind::kBackward, .range = {0, 1}, .micro_batch = 1}});
      }),
      "action 8 (backward 0-1 batch 1: first .. second): adds to the gradients of parameter 1 "
      "(b) after its exchange");
}

TEST(StepAverages, AnExchangeMovesTheParametersInBothDirections) {
  const StepPlan p = drawn_to_centre();
  EXPECT_TRUE(collectives_of(p, 4, {}).empty());
  EXPECT_EQ(server_bytes(p, p.actions[4], {}), 2 * 30 * 4);
  const auto none = [](const std::vector<int>&, const Collective&) -> Result<std::vector<Traffic>> {
    return std::vector<Traffic>(2);
  };
  const StepCost moved = cost(p, {2}, {}, none).take_or_throw();
  EXPECT_EQ(moved.pulled, (10 + 30) * 4);
  EXPECT_EQ(moved.pushed, (10 + 30) * 4);
  EXPECT_EQ(memory(p, {}).between_steps.parameters, 2 * (10 + 30) * 4);
}

TEST(StepAverages, AllComeInTheSameSteps) {
  EXPECT_EQ(said_of([](StepPlan& p) { p.actions[6].every = 2; }),
            "action 6 (average 0-0 over dp every 2: a): averages in other steps than those before");
  EXPECT_EQ(said_of([](StepPlan& p) { p.actions[7].every = 1; }),
            "action 7 (agree): comes in other steps than the averages");
  EXPECT_EQ(said_of([](StepPlan& p) { p.actions[4].every = 2; }),
            "action 4 (update 0-1 every 2: a .. b): cannot be for every 2 steps");
  EXPECT_EQ(said_of([](StepPlan& p) { p.actions[5].every = 0; }),
            "action 5 (average 1-1 over dp every 0: b): cannot be for every 0 steps");
}

TEST(StepAverages, OnlyParametersThatDivergeAreAveraged) {
  const auto replicated = [](StepPlan& p) {
    p.parameters = p.optimizer_state = {Placement::kReplicate};
  };
  EXPECT_EQ(
      said_of(replicated),
      "action 5 (average 1-1 over dp every 4: b): the weights of parameter 1 (b) are replicate "
      "over dp between steps");
  EXPECT_EQ(said_of([](StepPlan& p) { p.optimizer_state = {Placement::kReplicate}; }),
            "state: diverged over dp are the parameters and the optimizer's state, or neither; "
            "frozen parameters never");
  EXPECT_EQ(said_of([](StepPlan& p) { p.frozen = {Placement::kDiverged}; }),
            "state: diverged over dp are the parameters and the optimizer's state, or neither; "
            "frozen parameters never");
  EXPECT_EQ(said_of([](StepPlan& p) { p.actions[5].axes.clear(); }),
            "action 5 (average 1-1 every 4: b): needs an axis");
}

TEST(StepAverages, MoveWeightsSlotsAndAFewNumbers) {
  const StepPlan p = averaging();
  const std::vector<Collective> moved = collectives_of(p, 5, {.averaged_slots = 2});
  std::vector<std::int64_t> elements;
  for (const Collective& c : moved) elements.push_back(c.elements);
  // the weight and one step, parameters and two slots
  EXPECT_EQ(elements, (std::vector<std::int64_t>{2, 30, 30, 30}));
  EXPECT_EQ(moved[0].dtype, DType::kFloat64);
  EXPECT_EQ(moved[1].dtype, DType::kFloat32);
  EXPECT_EQ(moved[1].algorithm, "") << "each rank has all parameters";
  // the distances from the average, with what ranks agree on anyway
  const std::vector<Collective> agreed = collectives_of(p, 7, {.agreed_numbers = 7});
  ASSERT_EQ(agreed.size(), 1u);
  EXPECT_EQ(agreed[0].elements, 7 + plan::kAveragedNumbers);
  EXPECT_TRUE(collectives_of(p, 7, {}).empty()) << "no run, no agreement";
}

}  // namespace
}  // namespace stormo::analysis
