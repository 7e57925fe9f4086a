// Every mesh of 8 ranks, and every one of 4 with context parallelism or shards: 20 steps are those
// of one process, and ranks send what the plan says.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/train/run_of_one_process.h"

namespace stormo::train {
namespace {

using parallel::Strategy;
using test::Batch;
using test::PlanRank;
using test::PlanRun;
using test::Problem;
using Way = test::CutWay;

constexpr int kBatchRows = 16;

/// A gpt that 8 ranks can cut in this way: 8 heads, and at least as many segments as stages.
Problem problem(const Way& way) {
  const int layers = std::max(2, way.strategy.pipeline - 2);
  return {"gpt",
          [layers] {
            return std::make_shared<model::Gpt>(model::GptOptions{
                .vocabulary = 17, .context = 8, .layers = layers, .heads = 8, .width = 16});
          },
          [](std::int64_t rows) {
            return Batch{torch::randint(17, {rows, 8}), torch::randint(17, {rows, 8})};
          }};
}

std::vector<Way> factorisations() {
  std::vector<Way> out;
  const auto add = [&](const std::string& name, int ranks, const Strategy& strategy) {
    const parallel::StepOptions step{.micro_batches = std::max(2, strategy.pipeline), .clip = true};
    out.push_back({name, {ranks / 2, ranks / 2}, strategy, step});
  };
  for (const int pp : {1, 2, 4, 8}) {
    for (int tp = 1; pp * tp <= 8; tp *= 2) {
      const int dp = 8 / (pp * tp);
      add("dp" + std::to_string(dp) + "_pp" + std::to_string(pp) + "_tp" + std::to_string(tp), 8,
          {.pipeline = pp, .tensor = tp});
    }
  }
  for (const int cp : {2, 4}) {
    for (const int pp : {1, 2}) {
      for (int tp = 1; cp * pp * tp <= 4; tp *= 2) {
        add("of_4_pp" + std::to_string(pp) + "_tp" + std::to_string(tp) + "_cp" +
                std::to_string(cp),
            4, {.pipeline = pp, .tensor = tp, .context = cp});
      }
    }
  }
  for (const auto& [pp, tp] : {std::pair(1, 1), {2, 1}, {1, 2}}) {
    add("of_4_fsdp_pp" + std::to_string(pp) + "_tp" + std::to_string(tp), 4,
        {.kind = Strategy::Kind::kFsdp,
         .parameters = Strategy::Parameters::kSharded,
         .pipeline = pp,
         .tensor = tp});
  }
  return out;
}

class Factorisation : public testing::TestWithParam<Way> {};

TEST_P(Factorisation, TrainsAsOneProcess) {
  test::expect_run_of_one_process(GetParam(), problem(GetParam()), kBatchRows);
}

/// The norm of the whole gradient in the first step, by rank.
std::vector<double> norms(const Way& way, const Problem& problem) {
  const PlanRun run = test::sgd_run(way, problem, problem.batches(1, kBatchRows));
  std::vector<double> out(static_cast<std::size_t>(run.ranks()));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    double& norm = out[static_cast<std::size_t>(rank.rank())];
    rank.before_update = [&] {
      if (norm == 0) norm = rank.store().gradient_norm().take_or_throw();
    };
    rank.steps(1);
    throw_if_error(rank.groups.world().barrier());
  });
  return out;
}

TEST_P(Factorisation, HasTheGradientNormOfOneProcess) {
  Way one = GetParam();
  one.hosts = {1};
  one.strategy = {};
  const double norm = norms(one, problem(GetParam()))[0];
  EXPECT_GT(norm, 0.5) << "it is not clipped";
  for (const double n : norms(GetParam(), problem(GetParam()))) EXPECT_NEAR(n, norm, 1e-10 * norm);
}

INSTANTIATE_TEST_SUITE_P(Ways, Factorisation, testing::ValuesIn(factorisations()),
                         [](const auto& way) { return way.param.name; });

}  // namespace
}  // namespace stormo::train
