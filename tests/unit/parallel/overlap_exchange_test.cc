// Plans in which workers exchange with servers while they compute.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/step/step_simulate.h>
#include <stormo/parallel/computation/by_segment.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/strategy/strategy.h>

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;
using testing::ElementsAre;

/// Segments of 400 bytes each, and a frozen one in front of them.
plan::ModelShape shape(int segments) {
  plan::ModelShape out;
  out.segments.push_back(
      {.name = "frozen", .parameters = {{.name = "f", .elements = 5, .trainable = false}}});
  for (int i = 0; i < segments; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back(
        {.name = name, .parameters = {{name + ".weight", 90}, {name + ".bias", 10}}});
  }
  return out;
}

std::vector<std::string> text_of(const StepPlan& p) {
  std::vector<std::string> out;
  for (const plan::Action& a : p.actions) out.push_back(to_text(a));
  return out;
}

StepPlan served(int segments, std::vector<Pass> then) {
  std::vector<Pass> passes = {parameter_server(2)};
  passes.insert(passes.end(), then.begin(), then.end());
  return compose(one_device(shape(segments)), passes).take_or_throw();
}

TEST(OverlapExchange, IsOfSegmentsInTheOrderInWhichTheyAreNeededAndComplete) {
  EXPECT_THAT(text_of(served(2, {by_segment(), overlap_exchange()})),
              ElementsAre("load", "pull 1-2 over dp async", "pull 3-4 over dp async", "forward 0-0",
                          "forward 1-1", "forward 2-2", "loss", "backward 2-2", "backward 1-1",
                          "backward 0-0", "push 3-4 over dp async", "push 1-2 over dp async"));
}

TEST(OverlapExchange, IsChosenWhereServersAreBehindConnections) {
  const auto strategy_of = [](Strategy strategy, bool overlap) {
    return plan_for(strategy, shape(2), {.ranks_per_host = {2}}, {.overlap_exchange = overlap})
        .take_or_throw()
        .strategy;
  };
  const Strategy servers{.kind = Strategy::Kind::kParameterServer};
  EXPECT_EQ(strategy_of(servers, true), "one_device+parameter_server+by_segment+overlap_exchange");
  EXPECT_EQ(strategy_of(servers, false), "one_device+parameter_server");
  Strategy copies = servers, ranks = servers;
  copies.exchange_periods = {.fetch = 2, .push = 2};
  ranks.worker_ranks = 2;
  for (const Strategy& s : {copies, ranks}) {
    EXPECT_EQ(strategy_of(s, true), "one_device+parameter_server");
  }
}

/// A segment's forward takes 1 s, its backward `backward`, and its parameters 1 s on the way.
double seconds_of(const StepPlan& p, double backward) {
  const analysis::StepTimes times{.compute =
                                      [=](Rank, const plan::Action& a) {
                                        double own = 0;
                                        for (int s = a.range.first; s <= a.range.last; ++s) {
                                          own += s == 0 ? 0 : 1;
                                        }
                                        if (a.kind == ActionKind::kForward) return own;
                                        return a.kind == ActionKind::kBackward ? backward * own : 0;
                                      },
                                  .collective = {},
                                  .servers = {.latency_s = 0, .seconds_per_byte = 1.0 / 400}};
  return analysis::simulate(p, {2}, {}, times).take_or_throw().seconds;
}

TEST(OverlapExchange, HidesWhatIsSentBehindComputing) {
  const StepPlan at_once = served(3, {});
  const StepPlan early = served(3, {by_segment(), overlap_exchange()});
  EXPECT_EQ(seconds_of(at_once, 2), 3 + 3 + 6 + 3);
  // the first pull and the last push are not hidden
  EXPECT_EQ(seconds_of(early, 2), 1 + 3 + 6 + 1);
  // the link is the narrower one: forward waits for it, and pushes end after backward
  EXPECT_EQ(seconds_of(early, 0.5), 3 + 1 + 0.5 + 3);
  // a push does not wait for the norm, whose scale the last one brings
  EXPECT_EQ(seconds_of(served(3, {clip_gradients(), by_segment(), overlap_exchange()}), 2),
            1 + 3 + 6 + 1);
}

}  // namespace
}  // namespace stormo::parallel
