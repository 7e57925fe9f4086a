// Random models on random meshes, with sizes that ranks do not divide: each that is not refused
// does what its plan says and trains as one process.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <initializer_list>
#include <memory>
#include <string>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/plan/project.h>

#include "tests/long.h"
#include "tests/unit/train/cut_model.h"

namespace stormo::train::mesh_sweep {
namespace {

using test::Batch;
using test::Problem;

class Draw {
 public:
  explicit Draw(std::uint64_t seed) : random_(seed, "mesh") {}
  template <class T = int>
  T of(std::initializer_list<T> all) {
    return *(all.begin() + static_cast<std::ptrdiff_t>(random_.below(all.size())));
  }
  bool chance() { return of({0, 1}) == 1; }

 private:
  Rng random_;
};

Problem draw_gpt(Draw& draw) {
  const int heads = draw.of({1, 2, 3, 4, 6});
  const model::GptOptions o{.vocabulary = draw.of({5, 7, 19, 23}),
                            .context = draw.of({4, 6, 8, 12, 24}),
                            .layers = draw.of({1, 2, 3, 4}),
                            .heads = heads,
                            .width = heads * draw.of({2, 3, 5}),
                            .tied = draw.chance()};
  return {"gpt", [=] { return std::make_shared<model::Gpt>(o); },
          [=](std::int64_t rows) {
            return Batch{torch::randint(o.vocabulary, {rows, o.context}),
                         torch::randint(o.vocabulary, {rows, o.context})};
          }};
}

Problem draw_mlp(Draw& draw) {
  std::vector<std::int64_t> sizes = {draw.of({3, 20})};
  for (int left = draw.of({1, 2, 3, 4, 5}); left > 0; --left) {
    sizes.push_back(draw.of({2, 3, 5, 17, 33}));
  }
  return {"mlp", [=] { return std::make_shared<model::Mlp>(sizes); },
          [=](std::int64_t rows) {
            return Batch{torch::randn({rows, sizes.front()}), torch::randint(sizes.back(), {rows})};
          }};
}

/// A mesh of at most 12 ranks on up to 3 hosts, and what a step does besides.
test::CutWay draw_way(Draw& draw, bool has_positions) {
  test::CutWay way;
  Strategy& s = way.strategy;
  int ranks = 0;
  while (ranks < 2 || ranks > 12) {
    s.pipeline = draw.of({1, 1, 2, 3, 4});
    s.tensor = draw.of({1, 2, 2, 3, 4});
    s.context = has_positions ? draw.of({1, 1, 2, 3}) : 1;
    ranks = s.pipeline * s.tensor * s.context * draw.of({1, 1, 2, 3});
  }
  if (s.pipeline > 1) {
    s.schedule = draw.of<const char*>(
        {"1f1b", "gpipe", "eager_1f1b", "interleaved", "zero_bubble", "zero_bubble_v"});
  }
  if (s.schedule == "interleaved" || s.schedule == "zero_bubble_v") s.chunks = 2;
  if (s.context > 1 && draw.chance()) s.attention = plan::AttentionForm::kHeads;
  s.sequence_parallel = s.tensor > 1 && has_positions && draw.chance();
  if (draw.chance()) {
    s.kind = Strategy::Kind::kFsdp;
    s.stage = draw.of({1, 2, 3});
    s.hybrid = draw.chance();
  }
  const int hosts = std::min(ranks, draw.of({1, 1, 2, 3}));
  for (int h = 0; h < hosts; ++h) {
    way.hosts.push_back(ranks * (h + 1) / hosts - ranks * h / hosts);
  }
  way.step = {.micro_batches = draw.of({1, 2, 3, 4, 6}),
              .clip = draw.chance(),
              .prefetch = draw.of({0, 0, 1, 2}),
              .recompute = draw.chance()};
  using enum OptimizerOptions::Kind;
  way.optimizer = draw.of({kAdamW, kLars, kLamb, kLion});
  return way;
}

/// Whether the way is not refused.
bool trains_as_one_process(const test::CutWay& way, const Problem& problem,
                           const std::vector<Batch>& batches) {
  const auto plan = parallel::plan_for(way.strategy, problem.model(3)->split_shape(),
                                       {.ranks_per_host = way.hosts}, way.step);
  if (!plan.ok()) {
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument) << plan.status().message();
    return false;
  }
  const test::PlanRun run = run_of(way, problem, batches);
  test::CutWay one = way;
  one.hosts = {1};
  one.strategy = {};
  const auto runs = test::train_by_plan(run);
  const auto reference = test::train_by_plan(run_of(one, problem, batches));
  std::vector<double> losses(batches.size());
  for (std::size_t r = 0; r < runs.size(); ++r) {
    test::expect_trace(runs[r].trace, project(run.plan, static_cast<Rank>(r)), batches.size());
    test::expect_near(runs[r].values, reference[0].values, 1e-9, run.plan.strategy);
    for (std::size_t i = 0; i < losses.size(); ++i) losses[i] += runs[r].losses.at(i);
  }
  for (std::size_t i = 0; i < losses.size(); ++i) {
    EXPECT_NEAR(losses[i], reference[0].losses[i], 1e-9) << run.plan.strategy << " step " << i;
  }
  return true;
}

TEST(MeshSweep, TrainsAsOneProcessOrIsRefused) {
  const std::uint64_t seeds = is_long_form() ? 150 : 60;
  int trained = 0;
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    SCOPED_TRACE(seed);
    Draw draw(seed);
    const bool has_positions = draw.of({0, 1, 1}) == 1;
    const Problem problem = has_positions ? draw_gpt(draw) : draw_mlp(draw);
    std::vector<Batch> batches = problem.batches(2, draw.of({1, 3, 5, 12, 13}));
    batches.push_back(batches[0].rows(0, 1));
    trained += trains_as_one_process(draw_way(draw, has_positions), problem, batches) ? 1 : 0;
  }
  std::printf("%d of %d meshes trained, others were refused\n", trained, static_cast<int>(seeds));
  EXPECT_GT(trained, static_cast<int>(seeds / 5));
}

}  // namespace
}  // namespace stormo::train::mesh_sweep
