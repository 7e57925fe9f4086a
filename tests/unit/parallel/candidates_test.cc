// What a search for the fastest strategy compares.
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <vector>

#include <stormo/parallel/search/candidates.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

plan::ModelShape model(int segments) {
  plan::ModelShape out;
  for (int i = 0; i < segments; ++i) {
    const std::string name = "layer" + std::to_string(i);
    plan::ParameterShape weight{.name = name + ".weight", .elements = 64};
    weight.split.units = 8;
    out.segments.push_back({.name = name, .parameters = {weight}, .borrowed = {}});
    out.segments.back().heads = 4;
    out.segments.back().positions = 8;
    out.segments.back().keys = 16;
  }
  return out;
}

/// The meshes of the candidates that a model allows.
std::set<std::string> meshes(const std::vector<int>& hosts, int segments, std::int64_t batch,
                             bool by_positions = false) {
  std::set<std::string> out;
  for (const Candidate& c : candidates({.ranks_per_host = hosts}, batch, by_positions)) {
    const auto plan = plan_for(c.strategy, model(segments), {.ranks_per_host = hosts},
                               {.micro_batches = c.micro_batches, .recompute = c.recompute});
    if (!plan.ok()) continue;
    const int ranks = std::accumulate(hosts.begin(), hosts.end(), 0);
    EXPECT_EQ(plan->mesh.size(), ranks);
    EXPECT_LE(c.micro_batches, batch / data_part(plan->mesh, 0).parts);
    out.insert(to_text(plan->mesh).substr(8));
  }
  return out;
}

TEST(Candidates, AreAllMeshesThatTheModelAllows) {
  // 8 ranks do not divide 4 heads, and 2 segments are no 4 stages
  EXPECT_EQ(
      meshes({8}, 2, 32),
      (std::set<std::string>{"dp=8\n", "host=8\n", "shard=8\n", "dp=4 tp=2\n", "dp=2 tp=4\n",
                             "dp=4 pp=2\n", "dp=2 pp=2 tp=2\n", "pp=2 tp=4\n", "shard=4 tp=2\n",
                             "shard=2 tp=4\n", "shard=4 pp=2\n", "shard=2 pp=2 tp=2\n"}));
  EXPECT_EQ(meshes({2, 2}, 4, 32),
            (std::set<std::string>{"dp=4\n", "dp=2 host=2\n", "shard=4\n", "dp=2 shard=2\n",
                                   "dp=2 tp=2\n", "tp=4\n", "shard=2 tp=2\n", "dp=2 pp=2\n",
                                   "pp=4\n", "pp=2 tp=2\n", "shard=2 pp=2\n"}));
  EXPECT_EQ(
      meshes({4}, 2, 32, /*by_positions=*/true),
      (std::set<std::string>{"dp=4\n", "host=4\n", "shard=4\n", "dp=2 tp=2\n", "tp=4\n",
                             "dp=2 pp=2\n", "pp=2 tp=2\n", "dp=2 cp=2\n", "cp=4\n", "cp=2 tp=2\n",
                             "pp=2 cp=2\n", "shard=2 cp=2\n", "shard=2 tp=2\n", "shard=2 pp=2\n"}));
}

TEST(Candidates, AreThereOnceEach) {
  std::set<std::tuple<int, int, bool, int, std::string_view, std::string, int, int, bool, int, int,
                      bool>>
      seen;
  const auto all = candidates({.ranks_per_host = {4, 4}}, 16, true);
  for (const Candidate& c : all) {
    const Strategy& s = c.strategy;
    seen.insert({s.pipeline, s.tensor, s.sequence_parallel, s.context, to_string(s.attention),
                 s.schedule, s.chunks, s.stage, s.hybrid, static_cast<int>(s.parameters),
                 c.micro_batches, c.recompute});
  }
  EXPECT_EQ(seen.size(), all.size());
}

TEST(Candidates, ShareThePositionsBetweenLayersWhereTheModelCan) {
  for (const bool by_positions : {false, true}) {
    const auto all = candidates({.ranks_per_host = {4}}, 16, by_positions);
    const auto count = [&](bool shares) {
      return std::ranges::count_if(all, [=](const Candidate& c) {
        return c.strategy.tensor > 1 && c.strategy.sequence_parallel == shares;
      });
    };
    EXPECT_GT(count(false), 0);
    EXPECT_EQ(count(true), by_positions ? count(false) : 0);
  }
}

TEST(Candidates, KeepStagesBusy) {
  bool multiple_of_three = false;
  for (const Candidate& c : candidates({.ranks_per_host = {3}}, 12, false)) {
    multiple_of_three =
        multiple_of_three || (c.strategy.pipeline == 3 && c.strategy.schedule == "interleaved" &&
                              c.strategy.chunks == 2 && c.micro_batches == 6);
  }
  EXPECT_TRUE(multiple_of_three);
}

TEST(Candidates, OfABatchThatIsTooSmallThereAreNoneWithoutSamples) {
  for (const Candidate& c : candidates({.ranks_per_host = {4}}, 2, true)) {
    EXPECT_GE(ranks_of_replica(c.strategy), 2);
  }
}

}  // namespace
}  // namespace stormo::parallel
