// Streaming DiLoCo of replicas that are cut into stages and slices, and what it sends.
#include <gtest/gtest.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/train/run_of_one_process.h"

namespace stormo::train::streamed_parts {
namespace {

using test::PlanRank;
using test::PlanRun;
using test::Problem;
using test::Values;

using Way = test::CutWay;

constexpr parallel::OuterOptimizer kNesterov{parallel::OuterOptimizer::Kind::kNesterov, 0.7, 0.9};

Way cut(std::string name, std::vector<int> hosts, Strategy strategy,
        const parallel::StepOptions& step = {}) {
  strategy.kind = Strategy::Kind::kParameterAveraging;
  strategy.outer = kNesterov;
  return {std::move(name), std::move(hosts), std::move(strategy), step};
}

constexpr parallel::Streaming kStreamings[] = {{.fragments = 3}, {.fragments = 2, .delay = 2}};

// Fragments are of the whole model, whichever ranks have their parts.
TEST(StreamedParts, AreThoseOfWholeReplicas) {
  constexpr int kMany = 16;
  const auto values_of = [](Way way, const Problem& problem) {
    way.strategy.period = 6;
    PlanRun run = run_of(way, problem, {});
    run.batches = problem.batches(kMany, 13);
    run.options.optimizer = {.kind = OptimizerOptions::Kind::kAdamW, .lr = 0.01, .epsilon = 1e-2};
    std::vector<Values> out(static_cast<std::size_t>(run.ranks()));
    test::on_plan_ranks(run, [&](PlanRank& rank) {
      for (int step = 1; step <= kMany; ++step) {
        rank.at = {.number = step, .closes = step == kMany};
        rank.steps(1);
      }
      out[static_cast<std::size_t>(rank.rank())] = rank.values();
      throw_if_error(rank.groups.world().barrier());  // then nobody needs this rank's groups
    });
    return out;
  };
  for (const parallel::Streaming& how : kStreamings) {
    for (const Problem& problem : {test::gpt_problem(true), test::mlp_problem()}) {
      SCOPED_TRACE(testing::Message() << problem.name << ", " << how.fragments << " fragments");
      const Values whole = values_of(cut("whole", {2}, {.streaming = how}), problem)[0];
      for (const Way& way :
           {cut("stages_on_hosts", {2, 2}, {.streaming = how, .pipeline = 2}, {.micro_batches = 2}),
            cut("slices", {4}, {.streaming = how, .tensor = 2})}) {
        for (const Values& of_rank : values_of(way, problem)) {
          test::expect_near(of_rank, whole, 1e-10, way.name);
        }
      }
    }
  }
}

// Where all meet each fragment is sent once, and so it is in a period.
TEST(StreamedParts, SendWhatThePlanSays) {
  for (const Codec codec : {Codec::kNone, Codec::kBFloat16, Codec::kInt8}) {
    SCOPED_TRACE(to_string(codec));
    Way way = cut("hosts", {1, 1}, {.streaming = {.fragments = 2, .delay = 1}},
                  {.reduction = {.codec = codec}});
    way.strategy.period = 4;
    PlanRun run = run_of(way, test::mlp_problem(), {});
    constexpr int kMany = 13;
    run.batches = run.problem.batches(kMany, 8);
    const std::vector<test::PlanResult> meet = test::train_by_plan(run);
    const analysis::StepCost cost = test::predicted_cost(run, {});
    std::vector<std::uint64_t> sent(2);
    test::on_plan_ranks(run, [&](PlanRank& rank) {
      std::uint64_t before = 0;
      for (int step = 1; step <= kMany; ++step) {
        if (step == 10) before = rank.groups.bytes_sent();
        rank.at = {.number = step, .closes = false};
        rank.steps(1);
      }
      sent[static_cast<std::size_t>(rank.rank())] = rank.groups.bytes_sent() - before;
      throw_if_error(rank.groups.world().barrier());
    });
    for (std::size_t r = 0; r < 2; ++r) {
      test::expect_trace(meet[r].trace, project(run.plan, static_cast<Rank>(r)), kMany);
      const auto expected = static_cast<std::uint64_t>(cost.ranks[r].between_hosts);
      EXPECT_EQ(meet[r].sent.back(), expected);
      EXPECT_EQ(sent[r], expected) << "one fragment came in step 10, and one in step 12";
    }
  }
}

}  // namespace
}  // namespace stormo::train::streamed_parts
