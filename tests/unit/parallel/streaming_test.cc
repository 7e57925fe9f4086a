// Streaming DiLoCo as a pass, and as keys of parameter_averaging.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/streaming.h>
#include <stormo/parallel/strategy/strategy.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using test::all_actions;
using testing::ElementsAre;
using testing::HasSubstr;

/// Parameters of these sizes, one in each segment.
plan::ModelShape shape(const std::vector<std::int64_t>& sizes,
                       const std::vector<int>& frozen = {}) {
  plan::ModelShape out;
  for (std::size_t i = 0; i < sizes.size(); ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name, .parameters = {{name + ".weight", sizes[i]}}});
  }
  for (const int i : frozen) {
    out.segments[static_cast<std::size_t>(i)].parameters[0].trainable = false;
  }
  return out;
}

constexpr OuterOptimizer kNesterov{.kind = OuterOptimizer::Kind::kNesterov};

Strategy diloco(int period, const Streaming& how) {
  return {.kind = Strategy::Kind::kParameterAveraging,
          .period = period,
          .outer = kNesterov,
          .streaming = how};
}

std::vector<std::string> exchanges(const plan::StepPlan& p) {
  std::vector<std::string> out;
  for (const plan::Action& a : p.actions) {
    const plan::ActionRow& row = row_of(a.kind);
    if (row.averages() || row.outer_updates() || row.all_batches) out.push_back(to_text(a));
  }
  return out;
}

std::vector<std::string> exchanges(int period, const Streaming& how) {
  return exchanges(plan_for(diloco(period, how), shape({10, 10, 10, 10}), {.ranks_per_host = {2}})
                       .take_or_throw());
}

TEST(Streaming, EachFragmentHasItsSteps) {
  EXPECT_THAT(exchanges(10, {}), ElementsAre("average_parameters 0-3 over dp every 10",
                                             "outer_update 0-3 every 10", "agree every 10"));
  EXPECT_THAT(exchanges(10, {.fragments = 2}),
              ElementsAre("average_parameters 0-1 over dp every 10", "outer_update 0-1 every 10",
                          "average_parameters 2-3 over dp every 10 offset 5",
                          "outer_update 2-3 every 10 offset 5", "agree every 10"));
  EXPECT_THAT(
      exchanges(10, {.fragments = 3, .delay = 2}),
      ElementsAre("average_parameters 0-0 over dp async every 10",
                  "outer_update 0-0 every 10 offset 2 mixing 0.5",
                  "average_parameters 1-2 over dp async every 10 offset 3",
                  "outer_update 1-2 every 10 offset 5 mixing 0.5",
                  "average_parameters 3-3 over dp async every 10 offset 6",
                  "outer_update 3-3 every 10 offset 8 mixing 0.5", "agree every 10 offset 2"));
  EXPECT_THAT(exchanges(4, {.delay = 3, .mixing = 1}),
              ElementsAre("average_parameters 0-3 over dp async every 4",
                          "outer_update 0-3 every 4 offset 3 mixing 1", "agree every 4 offset 3"));
}

TEST(Streaming, FragmentsHaveAboutAsManyElements) {
  const auto ranges = [](const plan::ModelShape& model, int fragments) {
    std::string out;
    const plan::StepPlan p =
        plan_for(diloco(100, {.fragments = fragments}), model, {.ranks_per_host = {2}})
            .take_or_throw();
    for (const plan::Action& a : p.actions) {
      if (!row_of(a.kind).averages()) continue;
      out += std::to_string(a.range.first) + "-" + std::to_string(a.range.last) + " ";
    }
    return out;
  };
  EXPECT_EQ(ranges(shape({1, 1, 1, 1, 1, 1}), 3), "0-1 2-3 4-5 ");
  EXPECT_EQ(ranges(shape({90, 1, 1, 1, 1, 1}), 3), "0-0 1-1 2-5 ") << "none is empty";
  EXPECT_EQ(ranges(shape({1, 1, 1, 1, 1, 90}), 3), "0-3 4-4 5-5 ");
  EXPECT_EQ(ranges(shape({30, 10, 20, 20, 40}), 3), "0-1 2-3 4-4 ");
  EXPECT_EQ(ranges(shape({50, 10, 50, 10, 10, 50}, {0, 2, 5}), 2), "0-3 4-5 ") << "frozen ones";
  EXPECT_EQ(ranges(shape({1, 1, 1, 1, 1}), 5), "0-0 1-1 2-2 3-3 4-4 ");
}

std::string refused(const Strategy& strategy, const StepOptions& step = {}) {
  return plan_for(strategy, shape({10, 10, 10}), {.ranks_per_host = {2, 2}}, step)
      .status()
      .message();
}

TEST(Streaming, RefusesAllThatIsWrongAtOnce) {
  EXPECT_EQ(refused(diloco(12, {.fragments = 3, .delay = 3})), "");
  EXPECT_EQ(refused(diloco(12, {.fragments = 0})),
            "strategy 'parameter_averaging' has fragments with a step each in a period of 12: give "
            "1 to 12, not 0, or a longer period");
  EXPECT_THAT(refused(diloco(2, {.fragments = 3})),
              HasSubstr("give 1 to 2, not 3, or a longer period"));
  EXPECT_EQ(refused(diloco(12, {.fragments = 3, .delay = 4})),
            "strategy 'parameter_averaging' has fragments that are 4 step(s) apart (period / "
            "fragments), and each is back before the next one is sent: give a delay of 0 to 3, not "
            "4");
  EXPECT_EQ(refused(diloco(12, {.delay = -1, .mixing = 2})),
            "strategy 'parameter_averaging' has fragments that are 12 step(s) apart (period / "
            "fragments), and each is back before the next one is sent: give a delay of 0 to 11, "
            "not -1; keeps a share of a rank's own parameters: give a mixing of 0 to 1, not 2; "
            "mixes with what ranks have done while a fragment travels: leave out mixing, or give a "
            "delay");
  EXPECT_THAT(refused(diloco(12, {.fragments = 4})),
              HasSubstr("there are 4 fragments, and fewer trainable parameters; give fewer"));
  Strategy plain = diloco(12, {.fragments = 2});
  plain.outer = {};
  EXPECT_EQ(refused(plain),
            "strategy 'parameter_averaging' averages all parameters at once without an outer "
            "optimizer: leave out fragments, delay and mixing, or choose outer=nesterov");
  Strategy state = diloco(12, {.fragments = 2});
  state.average_state = Strategy::AverageState::kYes;
  EXPECT_THAT(refused(state), HasSubstr("leave out average_state"));
}

TEST(Streaming, CodecsAreOfOuterGradients) {
  const auto coded = [](Codec codec) { return StepOptions{.reduction = {.codec = codec}}; };
  for (const Codec codec : {Codec::kBFloat16, Codec::kInt8, Codec::kInt4}) {
    const auto p = plan_for(diloco(8, {.fragments = 2, .delay = 1}), shape({10, 10}),
                            {.ranks_per_host = {2}}, coded(codec));
    ASSERT_TRUE(p.ok()) << p.status().message();
    EXPECT_THAT(to_text(*p), HasSubstr("average_parameters 1-1 over dp async codec " +
                                       to_string(codec) + " every 8 offset 4"));
  }
  EXPECT_EQ(refused(diloco(8, {}), coded(Codec::kInt8)), "") << "also of all at once";
  Strategy plain = diloco(8, {});
  plain.outer = {};
  EXPECT_THAT(refused(plain, coded(Codec::kInt8)),
              HasSubstr("leave out compression, or choose outer=nesterov"));
  EXPECT_THAT(refused(diloco(8, {}), coded(Codec::kPowerSgd)),
              HasSubstr("codec powersgd is of matrices: take another compression"));
  Strategy cut = diloco(8, {});
  cut.tensor = 2;
  EXPECT_THAT(refused(cut, coded(Codec::kInt8)), HasSubstr("leave out pipeline and tensor"));
}

TEST(Streaming, FollowsAnOuterUpdate) {
  EXPECT_THAT(compose(one_device(shape({1})), parameter_averaging(2, 8, false), streaming({}))
                  .status()
                  .message(),
              HasSubstr("streaming: the plan has no average with an outer update; apply it after "
                        "outer_update"));
}

}  // namespace
}  // namespace stormo::parallel
