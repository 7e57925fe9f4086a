// Steps in which ranks mix with their neighbours: what verify says of them, what they send, and how
// long they take.
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/plan/mixing/mixing.h>
#include <stormo/plan/project.h>

#include "diverged_plan.h"

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;
using testing::HasSubstr;

constexpr std::int64_t kBytes = 40 * 4;  // of the parameters

/// Two segments of a parameter each, on ranks that average in every 4th step.
StepPlan averaging(int ranks = 2) {
  StepPlan p = diverged_plan(ranks);
  p.actions = {
      {.kind = ActionKind::kLoad},                                                            // 0
      {.kind = ActionKind::kForward, .range = {0, 1}},                                        // 1
      {.kind = ActionKind::kLoss},                                                            // 2
      {.kind = ActionKind::kBackward, .range = {0, 1}},                                       // 3
      {.kind = ActionKind::kUpdate, .range = {0, 1}},                                         // 4
      {.kind = ActionKind::kAverageParameters, .range = {0, 1}, .axes = {"dp"}, .every = 4},  // 5
      {.kind = ActionKind::kAgree, .every = 4}};                                              // 6
  return p;
}

Action mix(const std::string& topology = "ring") {
  return {.kind = ActionKind::kMix, .range = {0, 1}, .axes = {"dp"}, .algorithm = topology};
}
Action mix_ahead(const std::string& topology = "ring") {
  Action a = mix(topology);
  a.asynchronous = true;
  return a;
}
Action track(const std::string& topology = "ring") {
  Action a = mix(topology);
  a.kind = ActionKind::kTrack;
  return a;
}

StepPlan with(const Action& a, int before, int ranks = 2) {
  StepPlan p = averaging(ranks);
  p.actions.insert(p.actions.begin() + before, a);
  return p;
}
std::string said_of(const Action& a, int before) { return verify(with(a, before)).message(); }

TEST(StepGossip, RanksMixWhatTheyHaveUpdated) {
  EXPECT_EQ(said_of(mix(), 5), "");
  EXPECT_EQ(said_of(mix(), 4),
            "action 4 (mix 0-1 over dp by ring: a .. b): mixes parameter 0 (a) before its update");
  EXPECT_EQ(said_of(mix(), 6),
            "action 6 (mix 0-1 over dp by ring: a .. b): mixes parameter 0 (a), which is averaged "
            "already");
  StepPlan twice = with(mix(), 5);
  twice.actions.insert(twice.actions.begin() + 5, mix("complete"));
  EXPECT_TRUE(verify(twice).ok()) << verify(twice).message();
  StepPlan other = with(mix(), 5);
  other.mesh.axes.push_back({"x", 2});
  for (auto* on : {&other.parameters, &other.frozen, &other.optimizer_state}) {
    on->push_back(Placement::kReplicate);
  }
  other.actions[5].axes = {"x"};
  EXPECT_EQ(verify(other).message(),
            "action 5 (mix 0-1 over x by ring: a .. b): the weights of parameter 0 (a) are "
            "replicate over x between steps");
}

TEST(StepGossip, WhatIsSentAheadIsMixedByTheUpdate) {
  for (const int before : {1, 2, 3, 4}) EXPECT_EQ(said_of(mix_ahead(), before), "") << before;
  EXPECT_EQ(said_of(mix_ahead(), 5),
            "action 5 (mix 0-1 over dp async by ring: a .. b): is asynchronous, and no update of "
            "parameter 0 (a) waits for it");
  StepPlan twice = with(mix_ahead(), 1);
  twice.actions.insert(twice.actions.begin() + 3, mix_ahead());
  EXPECT_EQ(verify(twice).message(),
            "action 3 (mix 0-1 over dp async by ring: a .. b): mixes parameter 0 (a), which is "
            "being mixed already");
  StepPlan behind = with(mix_ahead(), 1);
  behind.actions.insert(behind.actions.begin() + 6, mix());
  EXPECT_TRUE(verify(behind).ok()) << "the update has taken the first";
}

TEST(StepGossip, GradientsAreTrackedOnceAndWhole) {
  EXPECT_EQ(said_of(track(), 4), "");
  EXPECT_EQ(said_of(track(), 3),
            "action 3 (track 0-1 over dp by ring: a .. b): comes before the last backward that "
            "adds to the gradients of parameter 0 (a)");
  EXPECT_EQ(said_of(track(), 5),
            "action 5 (track 0-1 over dp by ring: a .. b): comes after the update of parameter 0 "
            "(a)");
  StepPlan twice = with(track(), 4);
  twice.actions.insert(twice.actions.begin() + 4, track());
  EXPECT_EQ(verify(twice).message(),
            "action 5 (track 0-1 over dp by ring: a .. b): tracks the gradients of parameter 0 (a) "
            "twice");
  StepPlan clips = with(track(), 4);
  clips.clipped = true;
  clips.actions.insert(clips.actions.begin() + 4,
                       {{.kind = ActionKind::kNorm}, {.kind = ActionKind::kClip}});
  EXPECT_EQ(verify(clips).message(),
            "action 6 (track 0-1 over dp by ring: a .. b): estimates the mean of gradients as they "
            "are, and the step scales or clips them");
}

TEST(StepGossip, ATopologyIsKnownAndFitsItsRanks) {
  EXPECT_THAT(said_of(mix("rign"), 5),
              HasSubstr("action 5 (mix 0-1 over dp by rign: a .. b): mixes by topology 'rign': "
                        "there is none of this name, but ring, "));
  EXPECT_THAT(said_of(mix(""), 5), HasSubstr("mixes by topology '': there is none of this name"));
  EXPECT_THAT(said_of(mix("torus"), 5),
              HasSubstr("mixes by topology 'torus': 2 ranks are no grid"));
  EXPECT_EQ(said_of(mix("edges:0-1"), 5), "");
  EXPECT_THAT(said_of(mix("edges:0-2"), 5),
              HasSubstr("names rank 2, and there are the ranks 0 to"));
  Action coded = mix();
  coded.codec = Codec::kBFloat16;
  EXPECT_THAT(said_of(coded, 5), HasSubstr("sends values as they are, and has no codec"));
  EXPECT_EQ(said_of({.kind = ActionKind::kUpdate, .range = {0, 1}, .algorithm = "ring"}, 4),
            "action 4 (update 0-1 by ring: a .. b): adds up no gradients, and has neither codec "
            "nor algorithm");
}

TEST(StepGossip, TheTextFormKeepsATopologyThatSomebodyHasMade) {
  for (const char* topology : {"ring", "edges:0-1", "weights:1/2,1/2;1/2,1/2"}) {
    const StepPlan p = with(mix_ahead(topology), 1);
    const std::string text = to_text(p);
    EXPECT_THAT(text, HasSubstr("mix 0-1 over dp async by "));
    const auto again = plan::parse_step_plan(text);
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(*again, p);
    EXPECT_EQ(hash(*again), hash(p));
  }
  EXPECT_NE(hash(with(mix("ring"), 5)), hash(with(mix("complete"), 5)));
  std::string many = "edges:";
  for (int r = 1; r < 500; ++r) {
    many += (r > 1 ? "," : "") + std::to_string(r - 1) + "-" + std::to_string(r);
  }
  const StepPlan line = with(mix(many), 5, 500);
  EXPECT_EQ(plan::parse_step_plan(to_text(line)).take_or_throw(), line);
}

/// Nothing is sent by collectives here.
Result<std::vector<Traffic>> nothing(const std::vector<int>& ranks_per_host, const Collective&) {
  std::size_t ranks = 0;
  for (const int n : ranks_per_host) ranks += static_cast<std::size_t>(n);
  return std::vector<Traffic>(ranks);
}

// W's nonzeros outside of the diagonal, times the parameters; with gradient tracking twice.
TEST(StepGossip, ARankSendsItsDegreeTimesTheParameters) {
  struct Case {
    const char* topology;
    std::vector<std::int64_t> degrees;
  };
  const std::vector<Case> cases = {{"ring", std::vector<std::int64_t>(8, 2)},
                                   {"torus", std::vector<std::int64_t>(8, 3)},
                                   {"hypercube", std::vector<std::int64_t>(8, 3)},
                                   {"exponential", std::vector<std::int64_t>(8, 3)},
                                   {"one_peer_exponential", std::vector<std::int64_t>(8, 1)},
                                   {"complete", std::vector<std::int64_t>(8, 7)},
                                   {"edges:0-1,0-2,0-3,3-4,4-5,5-6,6-7", {3, 1, 1, 2, 2, 2, 2, 1}}};
  for (const Case& c : cases) {
    SCOPED_TRACE(c.topology);
    for (const bool tracks : {false, true}) {
      StepPlan p = with(mix_ahead(c.topology), 1, 8);
      if (tracks) p.actions.insert(p.actions.begin() + 5, track(c.topology));
      ASSERT_TRUE(verify(p).ok()) << verify(p).message();
      const std::int64_t times = tracks ? 2 : 1;
      const StepCost far = cost(p, std::vector<int>(8, 1), {}, nothing).take_or_throw();
      const StepCost near = cost(p, {8}, {}, nothing).take_or_throw();
      for (std::size_t r = 0; r < 8; ++r) {
        EXPECT_EQ(far.ranks[r].between_hosts, times * c.degrees[r] * kBytes) << r;
        EXPECT_EQ(far.ranks[r].in_host, 0) << r;
        EXPECT_EQ(near.ranks[r].in_host, times * c.degrees[r] * kBytes) << r;
      }
    }
  }
}

TEST(StepGossip, TheMemoryOfATrackerIsTwoNumbersForEachElement) {
  const MemorySizes sizes{.optimizer_numbers = 1};
  EXPECT_EQ(memory(with(mix(), 5), sizes).between_steps.total(),
            memory(averaging(), sizes).between_steps.total());
  EXPECT_EQ(memory(with(track(), 4), sizes).between_steps.optimizer_state,
            memory(averaging(), sizes).between_steps.optimizer_state + 2 * kBytes);
}

/// Forward and backward take 1 and 2 s for each segment, an update 1 s, a byte of a message as many
/// seconds as it says.
StepTimes times_with(double seconds_per_byte) {
  StepTimes out{
      .compute =
          [](Rank, const Action& a) {
            const plan::ActionRow& row = row_of(a.kind);
            if (row.makes.has(plan::Value::kUpdated)) return 1.0;
            return (row.runs_forward() ? 1.0 : row.adds_gradients ? 2.0 : 0.0) * a.range.size();
          },
      .collective = [](const auto&, const Collective&) -> Result<double> { return 0.0; }};
  out.stages_in_host =
      out.stages_between_hosts = {.latency_s = 0, .seconds_per_byte = seconds_per_byte};
  return out;
}

double seconds_of(const StepPlan& p, double of_a_message) {
  return simulate(p, {p.mesh.size()}, {}, times_with(of_a_message / kBytes))
      .take_or_throw()
      .seconds;
}

TEST(StepGossip, WhatIsSentAheadIsHiddenBehindTheGradients) {
  constexpr double kComputed = 2 + 4 + 1;
  EXPECT_DOUBLE_EQ(seconds_of(with(mix(), 5, 8), 1), kComputed + 2);
  EXPECT_DOUBLE_EQ(seconds_of(with(mix_ahead(), 1, 8), 1), kComputed);
  // of 10 s the gradients hide 6
  EXPECT_DOUBLE_EQ(seconds_of(with(mix_ahead(), 1, 8), 5), kComputed + 4);
  EXPECT_DOUBLE_EQ(seconds_of(with(mix_ahead("one_peer_exponential"), 1, 8), 5), kComputed);
}

// An average of all waits for the slowest; a mix for neighbours only.
TEST(StepGossip, ASlowRankHoldsUpItsNeighboursOnly) {
  StepTimes times = times_with(0);
  times.compute = [base = times.compute](Rank r, const Action& a) {
    return base(r, a) * (r == 0 ? 3 : 1);
  };
  StepPlan p = with(mix_ahead(), 1, 8);
  p.actions.insert(p.actions.begin() + 6, mix());
  p.actions.resize(7);  // without the average
  const auto s = simulate(p, {8}, {}, times).take_or_throw();
  EXPECT_EQ(s.finish, (std::vector<double>{21, 21, 7, 7, 7, 7, 7, 21}));
}

}  // namespace
}  // namespace stormo::analysis
