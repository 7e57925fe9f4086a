// Mixing with neighbours as passes, and the strategy of that name.
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/replicas/pairs.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/strategy/strategy.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using test::all_actions;
using testing::ElementsAre;
using testing::HasSubstr;

plan::ModelShape shape() { return test::two_segments({{".weight", 100}, {".bias", 10}}); }

TEST(Mix, FollowsTheUpdate) {
  const auto p = compose(one_device(shape()), parameter_averaging(6, 8), mix("torus"));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+parameter_averaging+mix");
  EXPECT_THAT(all_actions(*p), ElementsAre("load", "forward 0-1", "loss", "backward 0-1",
                                           "update 0-3", "mix 0-3 over dp by torus",
                                           "average 0-3 over dp every 8", "agree every 8"));
}

TEST(Gossip, SendsWhatTheStepBeginsWith) {
  const auto p =
      compose(one_device(shape()), parameter_averaging(4, 8, /*state=*/false), gossip({}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+parameter_averaging+gossip");
  EXPECT_THAT(
      all_actions(*p),
      ElementsAre("load", "mix 0-3 over dp async by ring", "forward 0-1", "loss", "backward 0-1",
                  "update 0-3", "average_parameters 0-3 over dp every 8", "agree every 8"));
}

TEST(Gossip, TracksGradientsBeforeTheUpdate) {
  const auto p = compose(one_device(shape()), parameter_averaging(8, 4, /*state=*/false),
                         gossip({.topology = "hypercube", .tracks_gradients = true}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(all_actions(*p),
              ElementsAre("load", "mix 0-3 over dp async by hypercube", "forward 0-1", "loss",
                          "backward 0-1", "track 0-3 over dp by hypercube", "update 0-3",
                          "average_parameters 0-3 over dp every 4", "agree every 4"));
}

TEST(Gossip, NeedsReplicasThatDiverge) {
  for (const Pass& pass : {mix(), gossip({})}) {
    EXPECT_THAT(compose(one_device(shape()), mirrored(2), pass).status().message(),
                HasSubstr("replicas of this plan do not diverge; apply it after "
                          "parameter_averaging"));
  }
}

Strategy gossip_by(const std::string& topology, bool tracking = false) {
  Strategy out{.kind = Strategy::Kind::kGossip};
  out.topology = topology;
  out.gradient_tracking = tracking;
  return out;
}

TEST(GossipStrategy, MixesByItsTopologyAndAveragesAllNowAndThen) {
  Strategy s = gossip_by("exponential", true);
  s.period = 100;
  const auto p = plan_for(s, shape(), {.ranks_per_host = {3, 2}});
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  const auto passes = compose(one_device(shape()), parameter_averaging(5, 100, /*state=*/false),
                              gossip({.topology = "exponential", .tracks_gradients = true}));
  EXPECT_EQ(*p, *passes);
  EXPECT_EQ(plan_for(s, shape(), {})->actions, one_device(shape()).actions) << "one rank";
}

// Each stage mixes with the same stage of other replicas.
TEST(GossipStrategy, MixesThePartsOfReplicasThatAreCut) {
  Strategy s = gossip_by("hypercube");
  s.pipeline = 2;
  const auto p = plan_for(s, shape(), {.ranks_per_host = {8}}, {.micro_batches = 2});
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 4}, {"pp", 2}}}));
  EXPECT_THAT(all_actions(*p), testing::Contains("mix 0-3 over dp async by hypercube"));
}

// Means of pairs belong to no step; the average is that of steps that close.
TEST(GossipStrategy, InPairsOnlyTheAverageOfAllIsPlanned) {
  Strategy s = gossip_by("pairs");
  s.period = 3;
  const auto p = plan_for(s, shape(), {.ranks_per_host = {3, 2}});
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+parameter_averaging+pairs");
  EXPECT_EQ(*p, *compose(one_device(shape()), pairs(5)));
  EXPECT_THAT(all_actions(*p), testing::Contains("average_parameters 0-3 over dp every 1048576"));
  EXPECT_EQ(plan_for(s, shape(), {})->actions, one_device(shape()).actions) << "one rank";
}

TEST(GossipStrategy, SaysWhatDoesNotFit) {
  const auto said = [](const Strategy& s, int ranks, const StepOptions& step = {}) {
    return check_strategy(s, {.ranks_per_host = {ranks}}, step).message();
  };
  EXPECT_EQ(said(gossip_by("ring"), 7), "");
  EXPECT_EQ(said(gossip_by("torus"), 7),
            "strategy 'gossip' mixes by topology 'torus': 7 ranks are no grid of 2 rows and "
            "columns or more; use 'ring', or start another number of ranks");
  EXPECT_THAT(said(gossip_by("edges:0-1,2-3"), 4),
              HasSubstr("there is no way between the ranks {0,1}, {2,3}: join them"));
  EXPECT_EQ(said(gossip_by("ring", true), 4, {.clip = true}),
            "strategy 'gossip' tracks gradients as they are: leave out train.clip_norm or "
            "gradient_tracking");
  EXPECT_THAT(said(gossip_by("ring"), 4, {.scale_loss = true}),
              HasSubstr("would have a loss scale of its own on every rank"));
  Strategy cut = gossip_by("hypercube");
  cut.pipeline = 2;
  EXPECT_EQ(said(cut, 8), "") << "4 replicas";
  EXPECT_THAT(said(cut, 6), HasSubstr("3 ranks are no power of two"));
  EXPECT_THAT(said(cut, 7), HasSubstr("7 ranks are no multiple of that"));
  cut.topology = "pairs";
  cut.gradient_tracking = true;
  EXPECT_THAT(said(cut, 8), AllOf(HasSubstr("leave out pipeline and tensor"),
                                  HasSubstr("leave out gradient_tracking")));
}

}  // namespace
}  // namespace stormo::parallel
