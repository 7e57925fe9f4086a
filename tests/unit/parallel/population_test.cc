// Tournaments and codistillation as passes, and the strategies of these names.
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/population.h>
#include <stormo/parallel/strategy/strategy.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using test::all_actions;
using testing::ElementsAre;
using testing::HasSubstr;

plan::ModelShape shape() { return test::two_segments({{".weight", 100}}); }

TEST(Population, MembersMeetInPlaceOfTheAverage) {
  const auto p = compose(one_device(shape()), parameter_averaging(5, 8), tournament("ring"));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+parameter_averaging+tournament");
  EXPECT_THAT(all_actions(*p),
              ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "update 0-1",
                          "tournament 0-1 over dp by ring every 8", "agree every 8"));
  const auto copies =
      compose(one_device(shape()), parameter_averaging(5, 8), codistillation("complete"));
  ASSERT_TRUE(copies.ok()) << copies.status().to_string();
  EXPECT_THAT(all_actions(*copies),
              ElementsAre("load", "forward 0-1", "loss", "backward 0-1", "update 0-1",
                          "exchange_models 0-1 over dp by complete every 8", "agree every 8"));
}

TEST(Population, NeedsReplicasThatDiverge) {
  for (const Pass& pass : {tournament("ring"), codistillation("ring")}) {
    EXPECT_THAT(compose(one_device(shape()), mirrored(2), pass).status().message(),
                HasSubstr("apply it after parameter_averaging"));
    EXPECT_THAT(compose(one_device(shape()), parameter_averaging(2, 8, /*state=*/false), pass)
                    .status()
                    .message(),
                HasSubstr("the plan has no average of replicas of one rank and of their state"));
  }
}

TEST(PopulationStrategies, AreThesePasses) {
  for (const auto& [kind, pass] :
       {std::pair(Strategy::Kind::kTournament, tournament("exponential")),
        std::pair(Strategy::Kind::kCodistillation, codistillation("exponential"))}) {
    Strategy s{.kind = kind, .period = 100};
    s.topology = "exponential";
    const auto p = plan_for(s, shape(), {.ranks_per_host = {3, 2}});
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    EXPECT_EQ(*p, *compose(one_device(shape()), parameter_averaging(5, 100), pass));
    EXPECT_EQ(plan_for(s, shape(), {})->actions, one_device(shape()).actions) << "one rank";
    EXPECT_TRUE(is_population(kind));
  }
  EXPECT_FALSE(is_population(Strategy::Kind::kGossip));
}

TEST(PopulationStrategies, SayWhatDoesNotFit) {
  Strategy s{.kind = Strategy::Kind::kTournament};
  const auto said = [&](int ranks, const StepOptions& step = {}) {
    return check_strategy(s, {.ranks_per_host = {ranks}}, step).message();
  };
  EXPECT_EQ(said(5), "");
  EXPECT_THAT(said(4, {.scale_loss = true}),
              HasSubstr("would have a loss scale of its own on every rank"));
  s.topology = "torus";
  EXPECT_THAT(said(7), HasSubstr("strategy 'tournament' has members that meet by topology 'torus': "
                                 "7 ranks are no grid"));
  s.topology = "ring";
  s.pipeline = 2;
  EXPECT_THAT(said(4), HasSubstr("does not cut replicas"));
}

}  // namespace
}  // namespace stormo::parallel
