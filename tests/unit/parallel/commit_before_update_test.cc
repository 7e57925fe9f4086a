// Plans for elastic training: a commit before all updates.
#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/commit_before_update.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/trust_ratios.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/replicas/mix.h>
#include <stormo/parallel/replicas/outer_update.h>
#include <stormo/parallel/replicas/parameter_averaging.h>
#include <stormo/parallel/replicas/streaming.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using test::all_actions;

/// Segments with a parameter each.
plan::ModelShape layers(int count) {
  plan::ModelShape out;
  for (int i = 0; i < count; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 100}},
                            .flops_per_sample = 200,
                            .borrowed = {}});
  }
  return out;
}

TEST(CommitBeforeUpdate, StandsBehindAllReductionsAndBeforeAllUpdates) {
  const auto p = compose(one_device(layers(2)), clip_gradients(), mirrored(2), bucket(1 << 20),
                         commit_before_update());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_TRUE(p->commits);
  const std::vector<std::string> all = all_actions(*p);
  const auto commit = std::ranges::find(all, "commit");
  ASSERT_NE(commit, all.end());
  for (auto a = all.begin(); a != all.end(); ++a) {
    EXPECT_EQ(a->starts_with("update") || *a == "agree", a > commit) << *a;
  }
  const auto parsed = plan::parse_step_plan(to_text(*p));
  ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
  EXPECT_EQ(*parsed, *p);
  EXPECT_NE(hash(*p),
            hash(*compose(one_device(layers(2)), clip_gradients(), mirrored(2), bucket(1 << 20))));
}

TEST(CommitBeforeUpdate, StandsBeforeTheUpdateOfOneCopyAndItsEnd) {
  for (const int hosts : {1, 2}) {
    const auto p = compose(one_device(layers(1)), clip_gradients(), host_shared(hosts, 2),
                           commit_before_update());
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    const std::string reduced =
        hosts == 1 ? "share_gradients 0-0 over host" : "all_reduce 0-0 over dp,host";
    EXPECT_THAT(all_actions(*p),
                ::testing::ElementsAre("load", "forward 0-0", "loss", "backward 0-0", reduced,
                                       "norm over host", "clip", "commit", "update 0-0",
                                       "share_parameters 0-0 over host", "agree"));
    const Status verified = analysis::verify(*p);
    EXPECT_TRUE(verified.ok()) << verified.to_string();
  }
}

TEST(CommitBeforeUpdate, StandsBeforeTheUpdateOfRanksThatAverageBehindIt) {
  const auto p = compose(one_device(layers(1)), parameter_averaging(3, 4, /*state=*/false),
                         outer_update(), commit_before_update());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "forward 0-0", "loss", "backward 0-0", "commit",
                                     "update 0-0", "average_parameters 0-0 over dp every 4",
                                     "outer_update 0-0 every 4", "agree every 4"));
  const Status verified = analysis::verify(*p);
  EXPECT_TRUE(verified.ok()) << verified.to_string();
}

// What they have sent is needed, too: it is here when all have committed.
TEST(CommitBeforeUpdate, StandsBeforeTheUpdateThatTakesTheMeansOfNeighbours) {
  const auto p = compose(one_device(layers(1)), parameter_averaging(3, 4, /*state=*/false),
                         gossip({.topology = "ring"}), commit_before_update());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "mix 0-0 over dp async by ring", "forward 0-0", "loss",
                                     "backward 0-0", "commit", "update 0-0",
                                     "average_parameters 0-0 over dp every 4", "agree every 4"));
  const Status verified = analysis::verify(*p);
  EXPECT_TRUE(verified.ok()) << verified.to_string();
}

TEST(CommitBeforeUpdate, TakesStagesOfWhichThereAreOtherRanks) {
  const plan::StepPlan one =
      compose(one_device(layers(2)), micro_batches(2), pipeline({.stages = 2})).take_or_throw();
  EXPECT_THAT(commit_before_update()(one).status().message(), ::testing::HasSubstr("may be lost"));
  const auto two = compose(one, {mirrored(2), commit_before_update()});
  ASSERT_TRUE(two.ok()) << two.status().to_string();
  const Status verified = analysis::verify(*two);
  EXPECT_TRUE(verified.ok()) << verified.to_string();
}

TEST(CommitBeforeUpdate, RefusesPlansInWhichARankHasNotAllThatItNeeds) {
  const auto refused = [](const Pass& distribute) {
    return compose(one_device(layers(2)), distribute, commit_before_update()).status().message();
  };
  using ::testing::HasSubstr;
  EXPECT_THAT(refused(commit_before_update()), HasSubstr("commits already"));
  EXPECT_THAT(refused(parameter_server(2)), HasSubstr("servers update"));
  EXPECT_THAT(refused([](const plan::StepPlan& in) {
                return compose(in, parameter_averaging(2, 4, /*state=*/false), outer_update(),
                               streaming({.fragments = 2}));
              }),
              HasSubstr("behind different steps"));
  EXPECT_THAT(refused(sharded({.stage = 1, .ranks = 2})), HasSubstr("may be lost"));
  EXPECT_THAT(
      compose(one_device(layers(2)), host_shared(1, 2), trust_ratios(), commit_before_update())
          .status()
          .message(),
      HasSubstr("adds up norms over ranks"));
}

}  // namespace
}  // namespace stormo::parallel
