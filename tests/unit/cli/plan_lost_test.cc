// `stormo plan simulate --lost`: the price of a step without some ranks, as text and JSON.
#include <cli/plan/options.h>
#include <cli/plan/step.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>

#include <cstdio>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace stormo::cli {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::StartsWith;

/// Four pipelines of two stages, which take 1 ms and 2 ms for a micro-batch, of which each has 12.
StepInput four_pipelines() {
  plan::ModelShape model;
  for (const std::string name : {"first", "second"}) {
    model.segments.push_back({.name = name,
                              .parameters = {{name + ".weight", 1}},
                              .flops_per_sample = 100,
                              .borrowed = {}});
  }
  StepInput step{
      .plan = parallel::compose(parallel::one_device(std::move(model)), parallel::micro_batches(12),
                                parallel::pipeline({.stages = 2}), parallel::mirrored(4))
                  .take_or_throw(),
      .ranks_per_host = {8}};
  step.measured = {.forward = {1e-3, 1e-3}, .backward = {2e-3, 2e-3}};
  step.memory.activations = {1000, 1000};
  return step;
}

struct Outcome {
  Status status;
  std::string out;
};

Outcome simulated(const PlanOptions& o) {
  ::testing::internal::CaptureStdout();
  const Status status = simulate_step(o, four_pipelines());
  std::fflush(nullptr);
  return {status, ::testing::internal::GetCapturedStdout()};
}

TEST(PlanLost, PricesPeersBesideTheIdealAndTheLossOfWholePipelines) {
  const Outcome text = simulated({.plan = "four.plan", .ranks = "8", .lost = {5}});
  ASSERT_TRUE(text.status.ok()) << text.status.message();
  EXPECT_THAT(text.out,
              StartsWith("one_device+micro_batches12+pipeline2_1f1b+mirrored: 8 rank(s)"));
  EXPECT_THAT(text.out, HasSubstr("without rank(s) 5; computations as measured here\n"));
  EXPECT_THAT(text.out, HasSubstr("peers do the work of lost ranks"));

  PlanOptions o{.plan = "four.plan", .ranks = "8", .lost = {5}};
  o.json = true;
  const auto end = nlohmann::json::parse(simulated(o).out);
  const double all = end["all_ranks"]["seconds"], peers = end["peers"]["seconds"],
               dropped = end["without_pipelines"]["seconds"];
  // 12 micro-batches of 3 ms, and one forward and backward while the other stage waits
  EXPECT_NEAR(all, 39e-3, 1e-3);
  EXPECT_NEAR(end["ideal_seconds"], all * 8 / 7, 1e-9);
  // three ranks of stage 1 have 16 micro-batches each, as each rank of three pipelines would
  EXPECT_GE(peers, 48e-3);
  EXPECT_LE(peers, dropped);
  EXPECT_NEAR(dropped, 51e-3, 1e-3);
  // with room for more micro-batches nobody waits but at the beginning and at the end
  const double one_more = end["peers_keep_one_more"]["seconds"],
               any = end["peers_keep_all"]["seconds"];
  EXPECT_LE(one_more, peers);
  EXPECT_LE(any, one_more);
  EXPECT_LE(end["peers"]["memory_peak"], end["peers_keep_one_more"]["memory_peak"]);
  EXPECT_EQ(end["peers"]["ranks"], 7);
  EXPECT_EQ(end["without_pipelines"]["ranks"], 6);
  EXPECT_GT(end["peers"]["memory_peak"], 0);
}

TEST(PlanLost, WherePeersAreLeftThoughEveryPipelineIsHit) {
  PlanOptions o{.plan = "four.plan", .ranks = "8", .lost = {0, 3, 4, 7}};
  EXPECT_THAT(simulated(o).out,
              HasSubstr("Every pipeline has lost a rank: without these none would be left.\n"));
  o.json = true;
  const auto end = nlohmann::json::parse(simulated(o).out);
  EXPECT_TRUE(end["without_pipelines"].is_null());
  EXPECT_THAT(end["lost"], ElementsAre(0, 3, 4, 7));
  // half of the ranks of both stages have twice the work
  EXPECT_GE(end["peers"]["seconds"], 2 * 36e-3);
  EXPECT_LE(end["peers"]["seconds"], 2 * 36e-3 * 1.15);
}

TEST(PlanLost, DrawsTheTimelineOfThoseThatAreLeft) {
  PlanOptions o{.plan = "four.plan", .ranks = "8", .lost = {5}};
  o.svg = true;
  EXPECT_THAT(simulated(o).out, StartsWith("<svg xmlns="));
}

TEST(PlanLost, RefusesAStageWithoutPeers) {
  const Outcome none = simulated({.plan = "four.plan", .ranks = "8", .lost = {1, 3, 5, 7}});
  EXPECT_EQ(none.status.code(), Code::kInvalidArgument);
  EXPECT_THAT(std::string(none.status.message()), HasSubstr("stage 1 has lost all of its 4 ranks"));
}

}  // namespace
}  // namespace stormo::cli
