// Plans with logical shards: what they say, what is refused, and what they take.
#include <stormo/parallel/computation/logical_shards.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/transfer/requests.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/replicas/bucket.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/logical_shards.h>
#include <stormo/plan/project.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using plan::StepPlan;
using testing::HasSubstr;

plan::ModelShape shape(bool sparse = false) {
  plan::ModelShape out;
  for (int i = 0; i < 3; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 100}, {name + ".bias", 10}},
                            .flops_per_sample = 200,
                            .borrowed = {}});
  }
  out.segments[0].parameters[0].sparse = sparse;
  return out;
}

StepPlan plan_on(int ranks, int shards) {
  return plan_for({}, shape(), {.ranks_per_host = {ranks}}, {.logical_shards = shards})
      .take_or_throw();
}

TEST(LogicalShards, EachOneIsAMicroBatchAndTheSumIsByTheTree) {
  const StepPlan p = plan_on(3, 8);
  EXPECT_EQ(p.logical_shards, 8);
  EXPECT_EQ(p.micro_batches, 4);
  EXPECT_EQ(p.strategy, "one_device+mirrored+logical_shards8");
  EXPECT_EQ(p.parameters, std::vector{plan::Placement::kReplicate});
  EXPECT_THAT(to_text(p), HasSubstr("step micro_batches=4 logical_shards 8\n"));
  EXPECT_THAT(test::all_actions(p),
              testing::ElementsAre("load", "forward 0-2", "loss", "backward 0-2",
                                   "forward 0-2 batch 1", "loss batch 1", "backward 0-2 batch 1",
                                   "forward 0-2 batch 2", "loss batch 2", "backward 0-2 batch 2",
                                   "forward 0-2 batch 3", "loss batch 3", "backward 0-2 batch 3",
                                   "all_reduce 0-5 over dp by fixed_tree_all_reduce", "update 0-5",
                                   "agree"));
}

TEST(LogicalShards, TheTextAndTheHashSayThem) {
  const StepPlan p = plan_on(2, 4);
  EXPECT_EQ(plan::parse_step_plan(to_text(p)).take_or_throw(), p);
  StepPlan other = p;
  other.logical_shards = 3;  // of which two ranks have two and one
  EXPECT_TRUE(analysis::verify(other).ok());
  EXPECT_NE(hash(other), hash(p));
  EXPECT_NE(to_text(other), to_text(p));
  EXPECT_EQ(plan::parse_step_plan("step_plan v2 x\nmesh dp=2\nstep micro_batches=1 "
                                  "logical_shards 65537\n")
                .status()
                .code(),
            Code::kBadPlan);
}

TEST(LogicalShards, OneRankHasAllOfThem) {
  const StepPlan p = plan_on(1, 6);
  EXPECT_EQ(p.micro_batches, 6);
  EXPECT_EQ(p.logical_shards, 6);
  EXPECT_TRUE(p.mesh.axes.empty());
}

TEST(LogicalShards, GradientsAndNumbersAreAddedUpByTheTree) {
  const StepPlan p = plan_on(3, 8);
  const auto sent = [&](plan::ActionKind kind) {
    const auto a = std::ranges::find(p.actions, kind, &plan::Action::kind);
    const auto number = static_cast<std::size_t>(a - p.actions.begin());
    return analysis::requests_of(project(p, 0), number, {.agreed_numbers = 9});
  };
  for (const plan::ActionKind kind : {plan::ActionKind::kAllReduce, plan::ActionKind::kAgree}) {
    const std::vector<analysis::Collective> requests = sent(kind);
    ASSERT_EQ(requests.size(), 1u);
    EXPECT_EQ(requests[0].combine, analysis::Combine::kSum);
    EXPECT_EQ(requests[0].algorithm, plan::kFixedTreeAllReduce);
  }
  EXPECT_EQ(sent(plan::ActionKind::kAllReduce)[0].elements, 330 + 6);  // and a flag for each
}

TEST(LogicalShards, WhatIsNoSumOverTheTreeDoesNotVerify) {
  const StepPlan good = plan_on(3, 8);
  EXPECT_TRUE(analysis::verify(good).ok());
  const auto refusal = [&](const auto& change) {
    StepPlan p = good;
    change(p);
    return analysis::verify(p).message();
  };
  const auto reduction = [](StepPlan& p) -> plan::Action& { return p.actions[13]; };
  EXPECT_THAT(refusal([&](StepPlan& p) { reduction(p).algorithm.clear(); }),
              HasSubstr("logical shards are added up by fixed_tree_all_reduce, without a codec"));
  EXPECT_THAT(refusal([&](StepPlan& p) { reduction(p).algorithm = "direct_all_reduce"; }),
              HasSubstr("logical shards are added up by fixed_tree_all_reduce"));
  EXPECT_THAT(refusal([&](StepPlan& p) { reduction(p).codec = Codec::kBFloat16; }),
              HasSubstr("without a codec"));
  EXPECT_THAT(refusal([&](StepPlan& p) { reduction(p).asynchronous = true; }),
              HasSubstr("when all of a rank are there"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.logical_shards = 2; }),
              HasSubstr("2 logical shards for 3 ranks, each of which needs one"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.logical_shards = 12; }),
              HasSubstr("a rank has up to 6 of 12 logical shards, each of which is a micro-batch, "
                        "and there are 4"));
  EXPECT_THAT(refusal([](StepPlan& p) { std::swap(p.actions[3], p.actions[6]); }),
              testing::Not(""));
  EXPECT_THAT(refusal([](StepPlan& p) {  // all of the second one before the first
                for (int i = 1; i <= 3; ++i) std::swap(p.actions[i], p.actions[i + 3]);
              }),
              HasSubstr("comes after the backward of a later logical shard"));
  EXPECT_THAT(refusal([](StepPlan& p) {
                p.actions.insert(p.actions.begin() + 1, {.kind = plan::ActionKind::kSumWeights});
              }),
              HasSubstr("is not needed"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.model.segments[1].parameters[0].sparse = true; }),
              HasSubstr("logical shards have dense gradients"));
  EXPECT_THAT(refusal([](StepPlan& p) { p.optimizer_state = {plan::Placement::kShard}; }),
              HasSubstr("logical shards are for replicas"));
}

TEST(LogicalShards, ARankMayHaveMoreOfThem) {
  const StepPlan p = plan_on(3, 8);
  const StepPlan more = compose(p, {shards_on_a_rank(6)}).take_or_throw();
  EXPECT_TRUE(analysis::verify(more).ok());
  EXPECT_EQ(more.micro_batches, 6);
  EXPECT_EQ(more.actions.size(), p.actions.size() + std::size_t{2} * 3);
  EXPECT_EQ(compose(p, {shards_on_a_rank(p.micro_batches)}).take_or_throw(), p);
  for (const int most : {3, 9}) {
    EXPECT_THAT(compose(p, {shards_on_a_rank(most)}).status().message(),
                HasSubstr(std::to_string(most) + " of 8; give at least 4"));
  }
  EXPECT_FALSE(compose(one_device(shape()), {shards_on_a_rank(1)}).ok());
}

TEST(LogicalShards, PassesThatGoWithThemAndThoseThatDoNot) {
  const StepPlan one = one_device(shape());
  EXPECT_TRUE(compose(one, {mirrored(2), logical_shards(4), recompute()}).ok());
  EXPECT_FALSE(compose(one, {mirrored(2), logical_shards(4), bucket(100)}).ok());
  EXPECT_FALSE(compose(one, {mirrored(2), logical_shards(4), reduce_with(in_one_order({}))}).ok());
  EXPECT_FALSE(compose(one, {logical_shards(4), mirrored(2)}).ok());
  EXPECT_FALSE(compose(one, {micro_batches(2), mirrored(2), logical_shards(4)}).ok());
  EXPECT_THAT(compose(one, {mirrored(4), logical_shards(3)}).status().message(),
              HasSubstr("logical_shards: 3; give 4, a shard for each rank, to 65536"));
}

TEST(LogicalShards, OneMessageSaysAllThatDoesNotGoWithThem) {
  const auto refusal = [](const Strategy& s, const StepOptions& step, int ranks = 4,
                          bool sparse = false) {
    const auto plan = plan_for(s, shape(sparse), {.ranks_per_host = {ranks}}, step);
    EXPECT_EQ(plan.status().code(), Code::kInvalidArgument);
    return plan.status().message();
  };
  EXPECT_EQ(refusal({.kind = Strategy::Kind::kFsdp}, {.logical_shards = 8}),
            "8 logical shards: they are for replicas of one rank: use "
            "strategy.kind=ddp, without pipeline, tensor, context and spatial");
  for (const Strategy& s : std::vector<Strategy>{{.kind = Strategy::Kind::kMirrored},
                                                 {.kind = Strategy::Kind::kCentralStorage},
                                                 {.kind = Strategy::Kind::kParameterServer},
                                                 {.kind = Strategy::Kind::kParameterAveraging},
                                                 {.kind = Strategy::Kind::kElasticAveraging},
                                                 {.kind = Strategy::Kind::kVertical},
                                                 {.pipeline = 2},
                                                 {.tensor = 2},
                                                 {.context = 2}}) {
    EXPECT_THAT(refusal(s, {.logical_shards = 8}), HasSubstr("use strategy.kind=ddp"));
  }
  EXPECT_THAT(refusal({}, {.logical_shards = 3}),
              HasSubstr("each rank computes at least one, and there are 4 ranks: give 4 to 65536, "
                        "or start fewer ranks"));
  EXPECT_THAT(refusal({.parameters = Strategy::Parameters::kHostShared}, {.logical_shards = 8}),
              HasSubstr("leave out strategy.parameters=host_shared"));
  EXPECT_THAT(refusal({}, {.logical_shards = 8}, 4, /*sparse=*/true),
              HasSubstr("they have dense gradients"));
  const std::string all = refusal({}, {.micro_batches = 2,
                                       .logical_shards = 8,
                                       .bucket_bytes = 100,
                                       .reduction = {.all_reduce = "ring_all_reduce"}});
  EXPECT_THAT(all, HasSubstr("leave out train.micro_batches"));
  EXPECT_THAT(all, HasSubstr("leave out strategy.compression, reducer, bucket_bytes"));
}

/// 330 numbers of 4 bytes: their sums for each node that is complete, and while two are added up
/// one parameter more.
TEST(LogicalShards, MemoryHasASumForEachLevelOfTheTree) {
  const auto gradients = [](int ranks, int shards) {
    return analysis::memory(plan_on(ranks, shards), {}).peak.gradients;
  };
  const std::int64_t all = 330 * 4, largest = 100 * 4;
  EXPECT_EQ(gradients(8, 8), all);
  EXPECT_EQ(gradients(4, 8), 2 * all + largest);
  EXPECT_EQ(gradients(2, 8), 3 * all + largest);
  EXPECT_EQ(gradients(1, 8), 4 * all + largest);
  EXPECT_EQ(gradients(3, 8), 3 * all + largest);
}

}  // namespace
}  // namespace stormo::parallel
