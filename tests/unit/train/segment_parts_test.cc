// A model of which ranks have parts, looked at one segment at a time.
#include <stormo/train/evaluation/segment_parts.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/train/agreement/broadcast.h>
#include <stormo/train/agreement/replica_check.h>
#include <stormo/train/evaluation/evaluate.h>

#include "tests/unit/train/plan_run.h"
#include "tests/unit/train/toy.h"

namespace stormo::train {
namespace {

using test::PlanRank;
using test::PlanRun;

struct Cut {
  std::string name;
  std::vector<parallel::Pass> passes;
};

PlanRun cut_run(const Cut& cut) {
  const test::Problem problem = test::gpt_problem();
  PlanRun run{
      .plan = parallel::compose(parallel::one_device(problem.model(3)->split_shape()), cut.passes)
                  .take_or_throw(),
      .hosts = {},
      .problem = problem,
      .batches = problem.batches(2, 8),
      .options = {}};
  run.hosts = {run.plan.mesh.size()};
  run.options.optimizer = {.kind = OptimizerOptions::Kind::kSgd, .lr = 0.1};
  return run;
}

class SegmentPartsOf : public ::testing::TestWithParam<Cut> {
 protected:
  const PlanRun run = cut_run(GetParam());
};

INSTANTIATE_TEST_SUITE_P(
    Cuts, SegmentPartsOf,
    ::testing::Values(
        Cut{"fsdp", {parallel::sharded({.stage = 3, .ranks = 3})}},
        Cut{"fsdp_of_stages",
            {parallel::pipeline({.schedule = parallel::gpipe()}),
             parallel::sharded({.stage = 3, .ranks = 2})}},
        Cut{"fsdp_of_slices",
            {parallel::tensor_parallel(2), parallel::sharded({.stage = 3, .ranks = 2})}},
        Cut{"pipeline", {parallel::pipeline({.schedule = parallel::gpipe()})}},
        Cut{"tensor", {parallel::tensor_parallel(2)}},
        Cut{"replicas_of_stages",
            {parallel::pipeline({.schedule = parallel::gpipe()}), parallel::mirrored(2)}}),
    [](const auto& cut) { return cut.param.name; });

// Also where ranks have different numbers of inputs.
TEST_P(SegmentPartsOf, ComputesWhatTheWholeModelComputes) {
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const torch::NoGradGuard no_grad;
    rank.steps(1);
    const SegmentParts parts(*rank.chain, rank.store());
    const auto count = static_cast<std::size_t>(rank.rank());
    std::vector<torch::Tensor> outputs(count, run.batches[1].x);
    const std::size_t largest = parts.forward(outputs);
    EXPECT_EQ(largest > 0, count > 0);
    const auto readable = rank.store().gather();
    for (const torch::Tensor& y : outputs) {
      EXPECT_TRUE(y.equal(rank.chain->forward(run.batches[1].x)));
      EXPECT_GE(largest, y.nbytes());
    }
  });
}

TEST_P(SegmentPartsOf, ShowsAllTensorsInNameOrder) {
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    rank.steps(2);
    const SegmentParts parts(*rank.chain, rank.store());
    const Result<std::string> hash = check_replicas(rank.groups.world(), parts.tensors());
    ASSERT_TRUE(hash.ok()) << hash.status().message();
    const auto readable = rank.store().gather();
    EXPECT_EQ(*hash, weights_hash(named_state(*rank.chain)));
  });
}

// Each rank gets the part that it keeps, also where that is a shard of a part.
TEST_P(SegmentPartsOf, AreMadeOneSegmentAtATime) {
  const auto trained = test::train_by_plan(run);
  PlanRun later = run;
  later.problem.build = [build = run.problem.build] {
    const model::ValuesLater scope;
    return build();
  };
  test::on_plan_ranks(later, [&](PlanRank& rank) {
    comm::Communicator& world = rank.groups.world();
    rank.bring = [&](std::size_t s) {
      world.rank() == 0 ? rank.chain->make_values(s) : rank.chain->give_memory(s);
      throw_if_error(broadcast_values(world, named_state(*rank.chain->segments()[s])));
    };
    rank.steps(run.batches.size());
    const auto r = static_cast<std::size_t>(rank.rank());
    test::expect_near(rank.values(), trained[r].values, 0, GetParam().name);
    throw_if_error(world.barrier());
  });
}

// Sums are of the same numbers in the same order: more batches than ranks, the last one smaller.
TEST_P(SegmentPartsOf, EvaluatesAsTheWholeModel) {
  const test::Batch all = run.problem.batches(1, 23)[0];
  const EvalSplit split{"validation", std::make_shared<test::RowsDataset>(all.x, all.target), 2};
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    comm::Communicator& world = rank.groups.world();
    rank.steps(2);
    SegmentParts parts(*rank.chain, rank.store());
    EXPECT_EQ(parts.batches_at_once(split.batch), 1);
    const Evaluation first =
        evaluate(world, rank.task, split, {.segments = &parts}).take_or_throw();
    EXPECT_GT(parts.batches_at_once(split.batch), 1);
    const Evaluation second =
        evaluate(world, rank.task, split, {.segments = &parts}).take_or_throw();
    const auto readable = rank.store().gather();
    const Evaluation whole = evaluate(world, rank.task, split).take_or_throw();
    EXPECT_EQ(first.loss, whole.loss);
    EXPECT_EQ(second.loss, whole.loss);
    EXPECT_EQ(first.samples, 23);
  });
}

// Of replicas of a stage: the owner of a part shows its own to the others of its replica.
TEST(SegmentParts, FindsReplicasThatDiffer) {
  const PlanRun run =
      cut_run({"", {parallel::pipeline({.schedule = parallel::gpipe()}), parallel::mirrored(3)}});
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const SegmentParts parts(*rank.chain, rank.store());
    if (rank.rank() == 5) {
      const torch::NoGradGuard no_grad;
      rank.chain->segments()[3]->named_parameters()["norm"].add_(1);
    }
    const Status status = check_replicas(rank.groups.world(), parts.tensors()).status();
    EXPECT_EQ(status.code(), Code::kMismatch);
    EXPECT_THAT(status.message(), ::testing::AllOf(::testing::HasSubstr("rank(s) 4, 5"),
                                                   ::testing::HasSubstr("first in 'head.norm'")));
  });
}

// All ranks learn what most of them keep: the largest tensors of a batch, for each sample.
TEST(SegmentParts, KeepsSixtyFourMebibytes) {
  const PlanRun run = cut_run({"", {parallel::sharded({.stage = 3, .ranks = 2})}});
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    SegmentParts parts(*rank.chain, rank.store());
    const bool has_batch = rank.rank() == 1;
    throw_if_error(
        parts.agree_on_bytes(rank.groups.world(), has_batch ? 7 << 20 : 0, has_batch ? 7 : 0));
    EXPECT_EQ(parts.batches_at_once(1), 63);
    EXPECT_EQ(parts.batches_at_once(10), 6);
    EXPECT_EQ(parts.batches_at_once(1000), 1);
    throw_if_error(parts.agree_on_bytes(rank.groups.world(), 0, 0));
    EXPECT_EQ(parts.batches_at_once(1), 1024);
  });
}

TEST(SegmentParts, NobodyBroadcastsValuesThatAreNotThere) {
  const auto model = [] {
    const model::ValuesLater later;
    return test::mlp_problem().model(3);
  }();
  test::on_ranks(2, [&](comm::Communicator& world) {
    const Status status = broadcast_values(world, named_state(*model));
    EXPECT_EQ(status.code(), Code::kInvalidArgument);
    EXPECT_THAT(
        status.message(),
        ::testing::HasSubstr("'layer0.linear.bias' has no values: call Chain::make_values()"));
  });
}

TEST(SegmentParts, AreOfAChainOfWhichRanksHaveParts) {
  const PlanRun run = cut_run({"", {parallel::sharded({.stage = 3, .ranks = 2})}});
  const auto model = run.problem.model(3);
  EXPECT_EQ(chain_in_parts(model, run.plan), model);
  EXPECT_EQ(chain_in_parts(test::mlp_problem().model(3), run.plan), nullptr);
  EXPECT_EQ(chain_in_parts(test::make_toy_module(1), run.plan), nullptr);
  // each rank has the whole
  EXPECT_EQ(chain_in_parts(model, parallel::one_device(model->shape())), nullptr);
  for (const auto& [stage, ranks] : {std::pair(2, 2), std::pair(3, 1)}) {
    const PlanRun resident = cut_run({"", {parallel::sharded({.stage = stage, .ranks = ranks})}});
    EXPECT_EQ(chain_in_parts(model, resident.plan), nullptr) << stage;
  }
}

}  // namespace
}  // namespace stormo::train
