// Steps of a population: what verify says of tournaments and of exchanges of models, what ranks
// send, and how long a tournament takes.
#include <cstdint>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>

#include "diverged_plan.h"

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;
using testing::HasSubstr;

Action meeting(ActionKind kind, const std::string& topology = "ring", int every = 4) {
  return {.kind = kind, .range = {0, 1}, .axes = {"dp"}, .every = every, .algorithm = topology};
}

/// Two segments of a parameter each, on ranks that meet in every 4th step.
StepPlan population(const Action& meets, int ranks = 2) {
  StepPlan p = diverged_plan(ranks);
  p.actions = {{.kind = ActionKind::kLoad},                       // 0
               {.kind = ActionKind::kForward, .range = {0, 1}},   // 1
               {.kind = ActionKind::kLoss},                       // 2
               {.kind = ActionKind::kBackward, .range = {0, 1}},  // 3
               {.kind = ActionKind::kUpdate, .range = {0, 1}},    // 4
               meets,                                             // 5
               {.kind = ActionKind::kAgree, .every = 4}};         // 6
  return p;
}

const std::vector<ActionKind> kMeetings = {ActionKind::kTournament, ActionKind::kExchangeModels};

TEST(StepPopulation, MembersMeetOnceBehindTheirUpdate) {
  for (const ActionKind kind : kMeetings) {
    const StepPlan p = population(meeting(kind));
    EXPECT_EQ(verify(p).message(), "");
    const std::string what =
        "action 5 (" + std::string(to_string(kind)) + " 0-1 over dp by ring every 4: a .. b): ";
    StepPlan early = p;
    std::swap(early.actions[4], early.actions[5]);
    EXPECT_THAT(verify(early).message(), HasSubstr("sends parameter 0 (a) before its update"));
    StepPlan twice = p;
    twice.actions.insert(twice.actions.begin() + 5, meeting(kind));
    EXPECT_THAT(verify(twice).message(), HasSubstr("sends parameter 0 (a) a second time"));
    StepPlan never = p;
    never.actions.erase(never.actions.begin() + 5);
    EXPECT_THAT(verify(never).message(), HasSubstr("averages parameter 0 (a), which diverges"));
    StepPlan other = p;
    other.actions[6].every = 2;
    EXPECT_THAT(verify(other).message(),
                HasSubstr("comes in other steps than those in which members meet"));
    StepPlan unknown = p;
    unknown.actions[5].algorithm = "rign";
    EXPECT_THAT(verify(unknown).message(), HasSubstr("by topology 'rign': there is none"));
  }
}

TEST(StepPopulation, MembersNeverAverage) {
  const Action average = {
      .kind = ActionKind::kAverage, .range = {0, 1}, .axes = {"dp"}, .every = 4};
  for (const ActionKind kind : kMeetings) {
    StepPlan behind = population(meeting(kind));
    behind.actions.insert(behind.actions.begin() + 6, average);
    EXPECT_THAT(verify(behind).message(),
                HasSubstr("averages parameter 0 (a), which members of a population have"));
    StepPlan before = population(meeting(kind));
    before.actions.insert(before.actions.begin() + 5, average);
    EXPECT_THAT(verify(before).message(), HasSubstr("sends parameter 0 (a), which is averaged"));
    StepPlan outer = population(meeting(kind));
    outer.actions.insert(outer.actions.begin() + 6,
                         {.kind = ActionKind::kOuterUpdate, .range = {0, 1}, .every = 4});
    EXPECT_THAT(verify(outer).message(), HasSubstr("comes before the average of parameter 0 (a)"));
  }
}

TEST(StepPopulation, TheTextFormHasTheTopologyAndThePeriod) {
  for (const ActionKind kind : kMeetings) {
    const StepPlan p = population(meeting(kind, "one_peer_exponential"));
    const std::string text = to_text(p);
    EXPECT_THAT(text, HasSubstr(std::string(to_string(kind)) +
                                " 0-1 over dp by one_peer_exponential every 4"));
    EXPECT_EQ(plan::parse_step_plan(text).take_or_throw(), p);
  }
  EXPECT_NE(hash(population(meeting(kMeetings[0]))), hash(population(meeting(kMeetings[1]))));
}

/// Nothing is sent by collectives here.
Result<std::vector<Traffic>> nothing(const std::vector<int>& ranks_per_host, const Collective&) {
  return std::vector<Traffic>(ranks_per_host.size());
}

// A tournament: parameters, each slot of the optimizer, and a number of steps for each parameter.
// An exchange: parameters, and their version.
TEST(StepPopulation, AMemberSendsItsModelToEachNeighbour) {
  constexpr std::int64_t kBytes = 40 * 4;  // of the parameters
  for (const auto& [topology, neighbours] :
       {std::pair("ring", 2), std::pair("one_peer_exponential", 1), std::pair("complete", 7)}) {
    for (const int slots : {0, 2}) {
      const auto sent = [&, topology = topology](ActionKind kind) {
        const StepPlan p = population(meeting(kind, topology), 8);
        const StepSizes sizes{.averaged_slots = slots};
        return cost(p, std::vector<int>(8, 1), sizes, nothing).take_or_throw().ranks;
      };
      for (const auto& rank : sent(ActionKind::kTournament)) {
        EXPECT_EQ(rank.between_hosts, neighbours * ((1 + slots) * kBytes + 2 * 8)) << topology;
      }
      for (const auto& rank : sent(ActionKind::kExchangeModels)) {
        EXPECT_EQ(rank.between_hosts, neighbours * (kBytes + 8)) << topology;
      }
    }
  }
}

TEST(StepPopulation, AMemberKeepsACopyOfEachNeighbour) {
  const auto between_steps = [](const StepPlan& p) {
    return memory(p, {.optimizer_numbers = 2}).between_steps.total();
  };
  const std::int64_t alone = between_steps(population(meeting(ActionKind::kTournament), 8));
  EXPECT_EQ(between_steps(population(meeting(ActionKind::kExchangeModels), 8)), alone + 2 * 40 * 4);
  EXPECT_EQ(between_steps(population(meeting(ActionKind::kExchangeModels, "complete"), 8)),
            alone + 7 * 40 * 4);
}

// A member waits for its neighbours only.
TEST(StepPopulation, ASlowMemberHoldsUpItsNeighboursOnly) {
  StepTimes times{
      .compute =
          [](Rank r, const Action& a) {
            const bool updates = row_of(a.kind).makes.has(plan::Value::kUpdated);
            return updates ? (r == 0 ? 3.0 : 1.0) : 0.0;
          },
      .collective = [](const auto&, const Collective&) -> Result<double> { return 0.0; }};
  StepPlan p = population(meeting(ActionKind::kTournament), 8);
  p.actions.resize(6);  // without the agreement
  const auto s = simulate(p, {8}, {}, times).take_or_throw();
  EXPECT_EQ(s.finish, (std::vector<double>{3, 3, 1, 1, 1, 1, 1, 3}));
}

}  // namespace
}  // namespace stormo::analysis
