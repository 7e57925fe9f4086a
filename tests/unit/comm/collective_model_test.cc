// What collectives of large groups cost: the same as each schedule played by itself, in few plays.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include <stormo/analysis/schedule/simulate.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/comm/selection/collective_model.h>
#include <stormo/parallel/strategy/strategy.h>

namespace stormo::comm {
namespace {

using analysis::Collective;
using plan::GoalKind;

plan::Topology links() {
  return {.host_sizes = {},
          .intra = {5e-7, 1e-10},
          .inter = {2e-5, 8.4e-9},
          .reduce_seconds_per_byte = 1e-10};
}

Duration played(const std::string& algorithm, const std::vector<int>& hosts, std::int64_t bytes) {
  const schedule::Builder* builder = schedule::find_builder(algorithm).take_or_throw();
  plan::Topology t = links();
  t.host_sizes = hosts;
  const plan::Schedule s =
      builder->build({.ranks = t.ranks(), .hosts = hosts, .root = 0, .pieces = 1}).take_or_throw();
  ManualClock clock;
  return analysis::simulate(s, t, bytes, clock, analysis::Timeline::kKeep).duration;
}

TEST(CollectiveModel, TakesAsLongAsTheScheduleThatIsPlayed) {
  struct Case {
    GoalKind goal;
    const char* algorithm;
    std::vector<int> hosts;
    std::vector<std::int64_t> elements;
  };
  // the last three are large enough for times between sizes; chunks of one byte, few and many
  for (const Case& c : {
           Case{GoalKind::kAllGather, "hierarchical_all_gather", {4, 4}, {8, 800, 12'345}},
           Case{GoalKind::kAllReduce, "hierarchical_all_reduce", {3, 2, 1}, {7, 999, 60'000}},
           Case{GoalKind::kReduceScatter, "hierarchical_reduce_scatter", {8, 8}, {17, 16'000}},
           Case{GoalKind::kAllGather, "ring_all_gather", {600}, {600, 600 * 77, 600 * 50'001, 601}},
           Case{GoalKind::kReduceScatter,
                "hierarchical_reduce_scatter",
                std::vector<int>(200, 7),
                {1400, 1400 * 77, 1400 * 50'001, 1401}},
           Case{GoalKind::kAllGather,
                "hierarchical_all_gather",
                std::vector<int>(200, 7),
                {1400, 1400 * 77, 1400 * 50'001, 1401}},
       }) {
    CollectiveModel model(links(), Selection::defaults());
    for (const std::int64_t elements : c.elements) {
      const auto time = model.time(c.hosts, {.goal = c.goal,
                                             .elements = elements,
                                             .dtype = DType::kUInt8,
                                             .axes = {},
                                             .algorithm = c.algorithm});
      ASSERT_TRUE(time.ok()) << time.status().to_string();
      const Duration exact = played(c.algorithm, c.hosts, elements);
      EXPECT_LE(std::abs((*time - exact).count()), 3) << c.algorithm << " of " << elements;
    }
  }
}

/// 96 segments of different sizes.
plan::ModelShape deep_model() {
  plan::ModelShape model;
  for (int i = 0; i < 96; ++i) {
    const std::string name = "block" + std::to_string(i);
    const std::int64_t elements = 12'000'000 + 70'000 * i;
    model.segments.push_back({.name = name,
                              .parameters = {{name + ".weight", elements}},
                              .flops_per_sample = 2 * elements,
                              .borrowed = {}});
  }
  return model;
}

// 96 segments, each gathered twice and reduced once: 288 large collectives of 96 sizes.
TEST(CollectiveModel, AStepOfThousandsOfRanksTakesFewPlays) {
  const std::vector<int> hosts(512, 8);
  const plan::StepPlan p = parallel::plan_for({.kind = parallel::Strategy::Kind::kFsdp},
                                              deep_model(), {.ranks_per_host = hosts})
                               .take_or_throw();
  CollectiveModel model(links(), Selection::defaults());
  int asked = 0;
  const analysis::StepTimes times{
      .compute = [](Rank, const plan::Action&) { return 1e-3; },
      .collective = [&](const auto& group, const Collective& c) -> Result<double> {
        ++asked;
        STORMO_ASSIGN_OR_RETURN(const Duration d, model.time(group, c));
        return std::chrono::duration<double>(d).count();
      }};
  const auto s = analysis::simulate(p, hosts, {}, times, analysis::Timeline::kDrop);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(s->finish.size(), 4096u);
  EXPECT_GE(asked, 288);
  EXPECT_LE(asked, 300);
  // chunks of 11 to 19 KiB, so two powers of two: five sizes of gathers and of reductions; sums of
  // flags besides
  EXPECT_LE(model.plays(), 12);

  analysis::StepCost cost = analysis::cost(p, hosts, {}, [&](const auto& group, const auto& c) {
                              return model.traffic(group, c);
                            }).take_or_throw();
  EXPECT_EQ(cost.ranks.size(), 4096u);
}

}  // namespace
}  // namespace stormo::comm
