// Steps whose averages come fragment by fragment, and travel while ranks go on: what verify says of
// them, what they send and keep, and how long they take.
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/verify/step_verify.h>

#include "diverged_plan.h"

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::StepPlan;
using testing::HasSubstr;

Action average(int parameter, int offset) {
  return {.kind = ActionKind::kAverageParameters,
          .range = {parameter, parameter},
          .axes = {"dp"},
          .asynchronous = true,
          .every = 8,
          .offset = offset};
}
Action outer_update(int parameter, int offset) {
  return {.kind = ActionKind::kOuterUpdate,
          .range = {parameter, parameter},
          .every = 8,
          .offset = offset,
          .mixing = 0.5};
}

/// Two segments of a parameter each, which two ranks average in turn in 8 steps, with a delay of 3.
StepPlan streaming() {
  StepPlan p = diverged_plan(2);
  p.actions = {{.kind = ActionKind::kLoad},                             // 0
               {.kind = ActionKind::kForward, .range = {0, 1}},         // 1
               {.kind = ActionKind::kLoss},                             // 2
               {.kind = ActionKind::kBackward, .range = {0, 1}},        // 3
               {.kind = ActionKind::kUpdate, .range = {0, 1}},          // 4
               average(0, 0),                                           // 5
               outer_update(0, 3),                                      // 6
               average(1, 4),                                           // 7
               outer_update(1, 7),                                      // 8
               {.kind = ActionKind::kAgree, .every = 8, .offset = 3}};  // 9
  return p;
}

std::string said_of(const std::function<void(std::vector<Action>&)>& change) {
  StepPlan p = streaming();
  change(p.actions);
  return verify(p).message();
}

TEST(StepStreaming, AnOuterUpdateTakesEachAverageOnceAndInALaterStep) {
  ASSERT_TRUE(verify(streaming()).ok()) << verify(streaming()).message();
  EXPECT_TRUE(is_staggered(streaming()));
  EXPECT_EQ(said_of([](auto& all) { std::swap(all[6], all[7]); }), "") << "of other parameters";
  EXPECT_THAT(said_of([](auto& all) { std::swap(all[5], all[6]); }),
              HasSubstr("comes before the average of parameter 0 (a)"));
  EXPECT_THAT(said_of([](auto& all) { std::swap(all[4], all[5]); }),
              HasSubstr("averages parameter 0 (a) before its update"));
  EXPECT_THAT(said_of([](auto& all) { all.erase(all.begin() + 6); }),
              HasSubstr("no outer_update is of parameter 0 (a)"));
  EXPECT_EQ(
      said_of([](auto& all) { all[8].offset = 4; }),
      "action 8 (outer_update 1-1 every 8 offset 4 mixing 0.5: b): comes in the same steps as "
      "the averages, which are asynchronous");
  EXPECT_EQ(said_of([](auto& all) { all[7].asynchronous = false; }),
            "action 8 (outer_update 1-1 every 8 offset 7 mixing 0.5: b): comes in other steps than "
            "the averages");
  EXPECT_EQ(
      said_of([](auto& all) {
        all[7].asynchronous = false;
        all[8].offset = 4;
      }),
      "action 8 (outer_update 1-1 every 8 offset 4 mixing 0.5: b): mixes averages with values "
      "that are older: these are not asynchronous");
  EXPECT_THAT(said_of([](auto& all) { all[6].every = 4; }),
              HasSubstr("comes in other steps than the averages"));
  EXPECT_THAT(said_of([](auto& all) { all[7].every = 4, all[7].offset = 0; }),
              HasSubstr("averages in other steps than those before"));
}

TEST(StepStreaming, NumbersThatDoNotFitAreNamed) {
  EXPECT_EQ(said_of([](auto& all) { all[7].offset = 8; }),
            "action 7 (average_parameters 1-1 over dp async every 8 offset 8: b): cannot come 8 "
            "steps later than others that are for every 8 steps");
  EXPECT_THAT(said_of([](auto& all) { all[4].offset = 1; }),
              HasSubstr("cannot come 1 steps later"));
  EXPECT_THAT(said_of([](auto& all) { all[8].mixing = 1.5; }),
              HasSubstr("cannot keep a share of 1.5 of what a rank has"));
  EXPECT_THAT(said_of([](auto& all) { all[7].mixing = 0.5; }), HasSubstr("cannot keep a share"));
  EXPECT_EQ(said_of([](auto& all) { all[7].codec = Codec::kInt8; }), "");
  EXPECT_THAT(said_of([](auto& all) { all[4].codec = Codec::kInt8; }),
              HasSubstr("has neither codec nor algorithm"));
  EXPECT_THAT(said_of([](auto& all) {
                all[5].codec = all[7].codec = Codec::kInt8;
                all[5].asynchronous = all[7].asynchronous = false;
                all.erase(all.begin() + 8);
                all.erase(all.begin() + 6);
              }),
              HasSubstr("no outer_update is of parameter 0 (a)"))
      << "who has no outer parameters cannot send differences from them";
}

TEST(StepStreaming, TheTextFormKeepsOffsetAndMixing) {
  const StepPlan p = streaming();
  EXPECT_THAT(to_text(p), HasSubstr("outer_update 1-1 every 8 offset 7 mixing 0.5"));
  EXPECT_EQ(plan::parse_step_plan(to_text(p)).take_or_throw(), p);
  for (const auto& change : std::vector<std::function<void(Action&)>>{
           [](Action& a) { a.offset = 6; }, [](Action& a) { a.mixing = 0.25; }}) {
    StepPlan other = p;
    change(other.actions[8]);
    EXPECT_NE(hash(other), hash(p));
    EXPECT_EQ(plan::parse_step_plan(to_text(other)).take_or_throw(), other);
  }
}

// Of each fragment its parameters, and a weight.
TEST(StepStreaming, AFragmentSendsItsParametersInItsCodec) {
  StepPlan p = streaming();
  const std::vector<Collective> moved = collectives_of(p, 7, {.averaged_slots = 2});
  ASSERT_EQ(moved.size(), 2u);
  EXPECT_EQ(moved[0].bytes(), 8);
  EXPECT_EQ(moved[1].bytes(), 30 * 4);
  EXPECT_TRUE(collectives_of(p, 8, {}).empty());
  p.actions[7].codec = Codec::kBFloat16;
  EXPECT_EQ(collectives_of(p, 7, {})[1].bytes(), 30 * 2);
  p.actions[7].codec = Codec::kInt8;
  const std::vector<Collective> coded = collectives_of(p, 7, {});
  ASSERT_EQ(coded.size(), 3u) << "codes go to their owners, and their sums to all";
  const std::int64_t code = encoded_parts(row_of(Codec::kInt8), 0, 30, 2).bytes;
  EXPECT_EQ(coded[1].bytes(), 2 * 2 * code);
  EXPECT_EQ(coded[2].bytes(), 2 * code);
}

TEST(StepStreaming, KeepsTheLargestFragmentWhileItTravels) {
  const MemorySizes sizes{.optimizer_numbers = 1};
  StepPlan waits = streaming();
  for (const std::size_t i : {5, 7}) {
    waits.actions[i].asynchronous = false;
    waits.actions[i + 1].offset = waits.actions[i].offset;
    waits.actions[i + 1].mixing = 0;
  }
  ASSERT_TRUE(verify(waits).ok()) << verify(waits).message();
  const std::int64_t before = memory(waits, sizes).between_steps.total();
  EXPECT_EQ(memory(waits, sizes).between_steps.optimizer_state, 3 * 40 * 4);
  EXPECT_EQ(memory(streaming(), sizes).between_steps.total(), before + 30 * 4);
  waits.actions[7].codec = Codec::kInt8;
  const EncodedParts parts = encoded_parts(row_of(Codec::kInt8), 0, 30, 2);
  EXPECT_EQ(memory(waits, sizes).between_steps.total(),
            before + 3 * parts.numbers * 4 + 4 * parts.bytes);
}

/// Computations take 10 s in a step; an average takes the given time, and a weight none.
double seconds_of(const StepPlan& p, double of_an_average) {
  const StepTimes times{
      .compute = [](Rank, const Action& a) { return row_of(a.kind).adds_gradients ? 10.0 : 0.0; },
      .collective = [=](const auto&, const Collective& c) -> Result<double> {
        return c.dtype == DType::kFloat64 ? 0 : of_an_average;
      }};
  return simulate(p, {2}, {}, times).take_or_throw().seconds;
}

// The mean of the steps of a period, in which two averages come.
TEST(StepStreaming, AnAverageIsHiddenBehindTheStepsOfItsDelay) {
  StepPlan waits = streaming();
  for (const std::size_t i : {5, 7}) {
    waits.actions[i].asynchronous = false;
    waits.actions[i + 1].offset = waits.actions[i].offset;
    waits.actions[i + 1].mixing = 0;
  }
  EXPECT_DOUBLE_EQ(seconds_of(waits, 12), 10 + 2 * 12.0 / 8);
  EXPECT_DOUBLE_EQ(seconds_of(streaming(), 12), 10);
  EXPECT_DOUBLE_EQ(seconds_of(streaming(), 30), 10) << "three steps";
  EXPECT_DOUBLE_EQ(seconds_of(streaming(), 34), 10 + 2 * 4.0 / 8);
}

}  // namespace
}  // namespace stormo::analysis
