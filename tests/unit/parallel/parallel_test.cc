#include <algorithm>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/computation/reduce_with.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/replicas/host_shared.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/servers/parameter_server.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/parallel/strategy/strategy.h>

#include "plan_text.h"

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;
using test::all_actions;

/// Segments with a weight and a bias each.
plan::ModelShape shape(int segments) {
  plan::ModelShape out;
  for (int i = 0; i < segments; ++i) {
    const std::string name = "layer" + std::to_string(i);
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".weight", 100 * (i + 1)}, {name + ".bias", 10}},
                            .flops_per_sample = 200 * (i + 1),
                            .borrowed = {}});
  }
  return out;
}

/// By kind and in order, as "all_gather 0-1 over shard".
std::vector<std::string> actions_of(const StepPlan& p, ActionKind kind) {
  std::vector<std::string> out;
  for (const plan::Action& a : p.actions) {
    if (a.kind == kind) out.push_back(to_text(a));
  }
  return out;
}

TEST(OneDevice, IsAValidPlanForAnyModel) {
  for (const int segments : {1, 2, 7}) {
    const StepPlan p = one_device(shape(segments));
    EXPECT_TRUE(analysis::verify(p).ok()) << analysis::verify(p).to_string();
    EXPECT_EQ(p.mesh.size(), 1);
  }
  EXPECT_EQ(analysis::verify(one_device({})).message(), "the model has no segments");
}

TEST(Mirrored, AddsOnlyAnAxisAndTheReductions) {
  for (const int dp : {1, 2, 5}) {
    const StepPlan before = one_device(shape(2));
    const auto p = compose(before, mirrored(dp));
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", dp}}}));
    EXPECT_EQ(p->model, before.model);
    StepPlan without = *p;
    EXPECT_EQ(std::erase_if(without.actions,
                            [](const auto& a) { return a.kind == ActionKind::kAllReduce; }),
              1u);
    EXPECT_EQ(without.actions, before.actions);
  }
}

TEST(Mirrored, ReducesEachPieceOfTheBackwardAtOnce) {
  StepPlan pieces = one_device(shape(2));
  pieces.actions[3].range = {1, 1};
  pieces.actions.insert(pieces.actions.begin() + 4,
                        {.kind = ActionKind::kBackward, .range = {0, 0}});
  const auto p = compose(pieces, mirrored(2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(to_text(p->actions[4]), "all_reduce 2-3 over dp");
  EXPECT_EQ(to_text(p->actions[6]), "all_reduce 0-1 over dp");
}

TEST(MicroBatches, AreReducedOnceAtTheLast) {
  const auto p = compose(one_device(shape(2)), micro_batches(3), mirrored(2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(
      actions_of(*p, ActionKind::kBackward),
      ::testing::ElementsAre("backward 0-1", "backward 0-1 batch 1", "backward 0-1 batch 2"));
  EXPECT_THAT(actions_of(*p, ActionKind::kAllReduce),
              ::testing::ElementsAre("all_reduce 0-3 over dp"));
  EXPECT_EQ(p->strategy, "one_device+micro_batches3+mirrored");
}

TEST(MicroBatches, RefusesWhatItCannotCut) {
  const StepPlan one = one_device(shape(2));
  EXPECT_EQ(micro_batches(0)(one).status().message(), "micro_batches: 0; give 1 to 65536");
  EXPECT_EQ(
      compose(one, micro_batches(2), micro_batches(2)).status().message(),
      "after one_device+micro_batches2: micro_batches: the batch is cut already; apply it once");
  StepPlan pieces = one;
  pieces.actions[3].range = {1, 1};
  pieces.actions.insert(pieces.actions.begin() + 4,
                        {.kind = ActionKind::kBackward, .range = {0, 0}});
  EXPECT_THAT(compose(pieces, mirrored(2), micro_batches(2)).status().message(),
              ::testing::HasSubstr("apply it before passes that cut them"));
}

TEST(GradientScale, ComesBeforeTheUpdateInTheOrderOfItsFactors) {
  const auto p = compose(one_device(shape(1)), scale_loss(), clip_gradients(), host_shared(1, 2));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  std::vector<std::string> all;
  for (const plan::Action& a : p->actions) all.push_back(to_text(a));
  EXPECT_THAT(
      all, ::testing::ElementsAre("load", "forward 0-0", "loss", "backward 0-0",
                                  "share_gradients 0-1 over host", "norm over host", "unscale",
                                  "clip", "update 0-1", "share_parameters 0-1 over host", "agree"));
  EXPECT_TRUE(p->scaled_loss);
  EXPECT_EQ(compose(one_device(shape(1)), scale_loss(), scale_loss()).status().message(),
            "after one_device+scale_loss: scale_loss: the loss is scaled already; apply it once");
  StepPlan none = one_device(shape(1));
  none.actions.pop_back();
  none.actions.pop_back();
  EXPECT_EQ(clip_gradients()(none).status().message(), "clip_gradients: the plan has no update");
}

TEST(Recompute, ComputesAllButTheLastGroupAgain) {
  const auto p = compose(one_device(shape(5)), mirrored(2), recompute());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  std::vector<std::string> all;
  for (const plan::Action& a : p->actions) all.push_back(to_text(a));
  EXPECT_THAT(
      all, ::testing::ElementsAre("load", "forward 0-1", "forward 2-3", "forward 4-4", "loss",
                                  "backward 4-4", "recompute 2-3", "backward 2-3", "recompute 0-1",
                                  "backward 0-1", "all_reduce 0-9 over dp", "update 0-9", "agree"));
  EXPECT_EQ(compose(*p, recompute()).status().message(),
            "after one_device+mirrored+recompute: recompute: the plan recomputes already; apply it "
            "once");
}

TEST(Recompute, KeepsToTheSegmentsOfShards) {
  const auto p = compose(one_device(shape(2)), sharded({.stage = 3, .ranks = 2}), recompute());
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(actions_of(*p, ActionKind::kRecompute), ::testing::ElementsAre("recompute 0-0"));
}

TEST(Mirrored, RefusesWhatItCannotRewrite) {
  EXPECT_EQ(mirrored(0)(one_device(shape(1))).status().code(), Code::kInvalidArgument);
  const auto twice = compose(one_device(shape(1)), mirrored(2), mirrored(2));
  EXPECT_EQ(twice.status().code(), Code::kBadPlan);
  EXPECT_EQ(
      twice.status().message(),
      "after one_device+mirrored: mirrored: the mesh already has an axis 'dp'; apply it once");
}

TEST(Compose, WithoutPassesValidatesOnly) {
  const StepPlan p = one_device(shape(1));
  ASSERT_TRUE(compose(p).ok());
  EXPECT_EQ(*compose(p), p);
  EXPECT_FALSE(compose(StepPlan{}).ok());
}

TEST(Compose, StopsAtTheFirstInvalidPlan) {
  int called = 0;
  const Pass breaks = [](const StepPlan& in) -> Result<StepPlan> {
    StepPlan out = in;
    out.strategy += "+breaks";
    out.actions.pop_back();
    return out;
  };
  const Pass counts = [&](const StepPlan& in) -> Result<StepPlan> {
    ++called;
    return in;
  };
  const auto p = compose(one_device(shape(1)), breaks, counts);
  EXPECT_EQ(p.status().message(),
            "one_device+breaks: no action lets the ranks agree on the end of the step");
  EXPECT_EQ(called, 0);
}

// The elements that each kind of collective moves, over the mesh axis `axis`.
std::int64_t moved(const StepPlan& p, ActionKind kind, const std::string& axis) {
  std::int64_t elements = 0;
  const auto parameters = flatten(p.model);
  for (const plan::Action& a : p.actions) {
    if (a.kind != kind || a.axes != std::vector{axis}) continue;
    for (int i = a.range.first; i <= a.range.last; ++i) {
      elements += parameters[static_cast<std::size_t>(i)]->elements;
    }
  }
  return elements;
}

TEST(Sharded, MovesEveryParameterTwiceOrThrice) {
  for (const int segments : {1, 2, 7}) {
    for (const int stage : {1, 2, 3}) {
      for (const int prefetch : {0, 1, 3}) {
        const Sharding how{.stage = stage, .ranks = 4, .prefetch = prefetch};
        const auto p = compose(one_device(shape(segments)), sharded(how));
        ASSERT_TRUE(p.ok()) << p.status().to_string();
        EXPECT_EQ(p->mesh, (plan::Mesh{{{"shard", 4}}}));
        const std::int64_t all = num_elements(p->model);
        EXPECT_EQ(moved(*p, ActionKind::kReduceScatter, "shard"), all);
        EXPECT_EQ(moved(*p, ActionKind::kAllGather, "shard"), stage == 3 ? 2 * all : all);
        EXPECT_EQ(moved(*p, ActionKind::kAllReduce, "shard"), 0);
      }
    }
  }
}

TEST(Sharded, AfterMirroredReducesPartsOverHosts) {
  const auto p = compose(one_device(shape(2)), mirrored(2), sharded({.stage = 3, .ranks = 4}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", 2}, {"shard", 4}}}));
  EXPECT_THAT(
      actions_of(*p, ActionKind::kAllReduce),
      ::testing::ElementsAre("all_reduce 2-3 over dp async", "all_reduce 0-1 over dp async"));
  EXPECT_EQ(moved(*p, ActionKind::kAllReduce, "dp"), num_elements(p->model));
}

// What the head of a GPT does with the weight of its embedding.
TEST(Sharded, KeepsABorrowedParameterUntilItsLastUser) {
  plan::ModelShape model = shape(3);
  model.segments[2].borrowed = {0};
  const auto p = compose(one_device(model), sharded({.stage = 3, .ranks = 2}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(actions_of(*p, ActionKind::kAllGather),
              ::testing::ElementsAre("all_gather 0-1 over shard", "all_gather 2-3 over shard",
                                     "all_gather 4-5 over shard", "all_gather 0-1 over shard",
                                     "all_gather 4-5 over shard", "all_gather 2-3 over shard"));
  EXPECT_THAT(
      actions_of(*p, ActionKind::kReduceScatter),
      ::testing::ElementsAre("reduce_scatter 4-5 over shard", "reduce_scatter 2-3 over shard",
                             "reduce_scatter 0-1 over shard"));
}

TEST(Sharded, MovesNoGradientsOfFrozenSegments) {
  plan::ModelShape model = shape(3);
  for (plan::ParameterShape& p : model.segments[0].parameters) p.trainable = false;
  for (const int stage : {1, 2, 3}) {
    const auto p = compose(one_device(model), sharded({.stage = stage, .ranks = 2}));
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    EXPECT_EQ(actions_of(*p, ActionKind::kReduceScatter).size(), 2u);
    // whole all the time, or in parts and gathered for the forward alone
    EXPECT_EQ(
        std::ranges::count(actions_of(*p, ActionKind::kAllGather), "all_gather 0-1 over shard"),
        stage == 3 ? 1 : 0);
  }
}

TEST(Sharded, RefusesWhatCannotBe) {
  EXPECT_EQ(sharded({.stage = 0, .ranks = 2})(one_device(shape(1))).status().message(),
            "sharded: stage 0; give 1, 2 or 3");
  EXPECT_EQ(sharded({.stage = 3, .ranks = 0})(one_device(shape(1))).status().message(),
            "sharded: 0 ranks; give at least 1");
  EXPECT_EQ(compose(one_device(shape(1)), sharded({.ranks = 2}), sharded({.ranks = 2}))
                .status()
                .message(),
            "after one_device+sharded3: sharded: the mesh already has an axis 'shard'; apply it "
            "once");
}

std::string passes(const Strategy& strategy, std::vector<int> hosts, bool can_share = true) {
  const auto p = plan_for(strategy, shape(2), {std::move(hosts), can_share});
  return p.ok() ? p->strategy : p.status().message();
}

TEST(ReduceWith, GivesReductionsTheirForm) {
  const ReductionForm form{
      .codec = Codec::kFloat16, .all_reduce = "tree", .reduce_scatter = "ring"};
  const StepPlan p = compose(one_device(shape(2)), mirrored(2), sharded({.stage = 3, .ranks = 2}),
                             reduce_with(form))
                         .take_or_throw();
  int reductions = 0;
  for (const plan::Action& a : p.actions) {
    const bool scatters = a.kind == ActionKind::kReduceScatter;
    const bool reduces = scatters || a.kind == ActionKind::kAllReduce;
    EXPECT_EQ(a.codec, reduces ? Codec::kFloat16 : Codec::kNone);
    EXPECT_EQ(a.algorithm, scatters ? "ring" : reduces ? "tree" : "");
    reductions += reduces ? 1 : 0;
  }
  EXPECT_EQ(reductions, 4);
  EXPECT_TRUE(p.strategy.ends_with("+reduce_with"));
  const StepPlan none = compose(one_device(shape(2)), host_shared(1, 2)).take_or_throw();
  EXPECT_EQ(compose(none, reduce_with(form)).take_or_throw(), none);
}

TEST(ReduceWith, BlocksAreRefusedWhereNeighboursMayNotShareAScale) {
  const ReductionForm form{.codec = Codec::kInt8};
  const auto refusal = [&](const Strategy& s, const StepOptions& step) {
    return plan_for(s, shape(2), {.ranks_per_host = {4}}, step).status().message();
  };
  EXPECT_EQ(refusal({.parameters = Strategy::Parameters::kReplicated}, {.reduction = form}), "");
  EXPECT_THAT(refusal({.tensor = 2}, {.reduction = form}),
              ::testing::HasSubstr("leave out tensor, or use another"));
  EXPECT_THAT(refusal({}, {.scale_loss = true, .reduction = form}),
              ::testing::HasSubstr("units of the scaled loss"));
}

// Only such a plan says that a parameter is a matrix.
TEST(ReduceWith, FactorsAreOfWholeMatrices) {
  using enum Strategy::Kind;
  plan::ModelShape model = shape(2);
  plan::ParameterShape& matrix = model.segments[0].parameters[0];
  matrix = {.name = matrix.name, .elements = 40 * 50, .rows = 40};
  const auto planned = [&](const Strategy& s, Codec codec) {
    return plan_for(s, model, {.ranks_per_host = {1, 1}}, {.reduction = {.codec = codec}});
  };
  const auto rows = [](const StepPlan& p) { return p.model.segments[0].parameters[0].rows; };
  EXPECT_EQ(rows(planned({}, Codec::powersgd(2)).take_or_throw()), 40);
  EXPECT_EQ(rows(planned({}, Codec::kInt8).take_or_throw()), 0);
  EXPECT_THAT(planned({.kind = kFsdp}, Codec::kPowerSgd).status().message(),
              ::testing::HasSubstr("adds up parts of gradients, and codec powersgd is of whole "
                                   "matrices; use 'ddp', or another compression"));
  EXPECT_THAT(planned({}, Codec::powersgd(12)).status().message(),
              ::testing::HasSubstr("take a smaller rank, or another codec"));
}

TEST(StrategyByName, IsOneDeviceOnOneRank) {
  for (std::size_t k = 0; k < strategy_names().size(); ++k) {
    const auto kind = static_cast<Strategy::Kind>(k);
    if (kind == Strategy::Kind::kAuto) {
      EXPECT_NE(passes({.kind = kind}, {1}).find("is chosen by 'stormo train'"), std::string::npos);
      continue;
    }
    EXPECT_EQ(passes({.kind = kind}, {1}),
              has_servers(kind) ? "one_device+" + strategy_names()[k] : "one_device");
  }
}

TEST(StrategyByName, SharesAHostsMemoryWhereThatIsPossible) {
  using enum Strategy::Kind;
  using Strategy::Parameters::kHostShared, Strategy::Parameters::kReplicated,
      Strategy::Parameters::kSharded;
  const std::string replicated = "one_device+mirrored", shared = "one_device+host_shared";
  EXPECT_EQ(passes({.kind = kMirrored}, {4}), replicated);
  EXPECT_EQ(passes({.kind = kCentralStorage}, {4}), shared);
  EXPECT_EQ(passes({.kind = kDdp}, {4}), shared);
  EXPECT_EQ(passes({.kind = kDdp}, {2, 2}), shared);
  EXPECT_EQ(passes({.kind = kDdp}, {1, 1}), replicated);
  EXPECT_EQ(passes({.kind = kDdp}, {2, 1}), replicated);
  EXPECT_EQ(passes({.kind = kDdp}, {4}, /*can_share=*/false), replicated);
  EXPECT_EQ(passes({.kind = kDdp, .parameters = kReplicated}, {4}), replicated);
  EXPECT_EQ(passes({.kind = kFsdp}, {4}), shared);
  EXPECT_EQ(passes({.kind = kFsdp}, {2, 2}), "one_device+sharded3");
  EXPECT_EQ(passes({.kind = kFsdp, .hybrid = true}, {2, 2}), shared);
  EXPECT_EQ(passes({.kind = kFsdp, .parameters = kSharded, .stage = 1}, {4}),
            "one_device+sharded1");
  EXPECT_EQ(passes({.kind = kFsdp, .parameters = kSharded, .stage = 2, .hybrid = true}, {2, 2}),
            "one_device+mirrored+sharded2");
}

TEST(StrategyByName, SaysWhatFitsInstead) {
  using enum Strategy::Kind;
  using Strategy::Parameters::kHostShared, Strategy::Parameters::kReplicated,
      Strategy::Parameters::kSharded;
  using ::testing::HasSubstr;
  EXPECT_THAT(passes({.kind = kOneDevice}, {2}), HasSubstr("use 'ddp'"));
  EXPECT_THAT(passes({.kind = kMirrored}, {1, 1}), HasSubstr("'multi_worker_mirrored'"));
  EXPECT_THAT(passes({.kind = kFsdp, .parameters = kReplicated}, {2}), HasSubstr("use 'ddp'"));
  EXPECT_THAT(passes({.kind = kDdp, .parameters = kSharded}, {2}), HasSubstr("use 'fsdp'"));
  EXPECT_THAT(passes({.kind = kFsdp, .stage = 4}, {2}), HasSubstr("stages 1 to 3"));
  EXPECT_THAT(passes({.kind = kCentralStorage}, {2}, false), HasSubstr("parameters=replicated"));
  EXPECT_THAT(passes({.kind = kDdp, .parameters = kHostShared}, {2, 1}),
              HasSubstr("as many ranks on one host"));
}

TEST(StrategyByName, TakesWhatAStepHasBesides) {
  const auto p = plan_for({.kind = Strategy::Kind::kFsdp}, shape(2), {.ranks_per_host = {1, 1}},
                          {.micro_batches = 2, .scale_loss = true, .clip = true, .prefetch = 1});
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_EQ(p->strategy, "one_device+micro_batches2+scale_loss+clip_gradients+sharded3");
  EXPECT_TRUE(std::ranges::any_of(p->actions, &plan::Action::asynchronous));
}

TEST(ParameterServer, PullsBeforeForwardAndPushesWhereOthersUpdate) {
  for (const int workers : {1, 2, 5}) {
    const auto p = compose(one_device(shape(2)), parameter_server(workers));
    ASSERT_TRUE(p.ok()) << p.status().to_string();
    EXPECT_EQ(p->mesh, (plan::Mesh{{{"dp", workers}}}));
    EXPECT_EQ(p->parameters, std::vector{plan::Placement::kRemote});
    EXPECT_EQ(p->optimizer_state, std::vector{plan::Placement::kRemote});
    EXPECT_EQ(p->frozen, std::vector{plan::Placement::kReplicate});
    EXPECT_THAT(all_actions(*p),
                ::testing::ElementsAre("load", "pull 0-3 over dp", "forward 0-1", "loss",
                                       "backward 0-1", "push 0-3 over dp"));
  }
}

TEST(ParameterServer, WorkersMayTrainCopiesBetweenPullsAndPushes) {
  const auto p = compose(one_device(shape(2)), parameter_server(2, {.fetch = 4, .push = 2}));
  ASSERT_TRUE(p.ok()) << p.status().to_string();
  EXPECT_THAT(all_actions(*p),
              ::testing::ElementsAre("load", "pull 0-3 over dp every 4", "forward 0-1", "loss",
                                     "backward 0-1", "update 0-3", "push 0-3 over dp every 2"));
  EXPECT_EQ(parameter_server(2, {.fetch = 0})(one_device(shape(1))).status().message(),
            "parameter_server: a pull in every 0 steps and a push in every 1; give at least 1");
}

TEST(ParameterServer, TakesOtherPassesBeforeAndAfter) {
  const auto before = compose(one_device(shape(3)), micro_batches(2), scale_loss(),
                              clip_gradients(), parameter_server(2));
  const auto after = compose(one_device(shape(3)), parameter_server(2), micro_batches(2),
                             scale_loss(), clip_gradients());
  ASSERT_TRUE(before.ok()) << before.status().to_string();
  ASSERT_TRUE(after.ok()) << after.status().to_string();
  EXPECT_EQ(after->actions, before->actions);
  EXPECT_THAT(
      all_actions(*before),
      ::testing::ElementsAre("load", "pull 0-5 over dp", "forward 0-2", "loss", "backward 0-2",
                             "forward 0-2 batch 1", "loss batch 1", "backward 0-2 batch 1", "norm",
                             "unscale", "clip", "push 0-5 over dp"));
  const auto again = compose(*before, recompute());
  ASSERT_TRUE(again.ok()) << again.status().to_string();
  EXPECT_EQ(actions_of(*again, ActionKind::kPull).size(), 1u);
  EXPECT_EQ(actions_of(*again, ActionKind::kRecompute).size(), 2u);
}

TEST(ParameterServer, RefusesWhatItCannotRewrite) {
  EXPECT_EQ(parameter_server(0)(one_device(shape(1))).status().message(),
            "parameter_server: 0 workers; give at least 1");
  const auto twice = compose(one_device(shape(1)), mirrored(2), parameter_server(2));
  EXPECT_EQ(twice.status().code(), Code::kBadPlan);
  EXPECT_EQ(twice.status().message(),
            "after one_device+mirrored: parameter_server: the mesh has axes already; apply it "
            "once, and no other strategy");
  EXPECT_EQ(compose(one_device(shape(1)), parameter_server(2), mirrored(2)).status().code(),
            Code::kBadPlan);
}

TEST(StrategyByName, HasServersForAnyWorkers) {
  using enum Strategy::Kind;
  using Strategy::Parameters::kHostShared, Strategy::Parameters::kReplicated,
      Strategy::Parameters::kSharded;
  for (const std::vector<int>& workers : {std::vector{3}, {2, 1}, {1, 1, 1}}) {
    EXPECT_EQ(passes({.kind = kParameterServer}, workers), "one_device+parameter_server");
  }
  for (const auto copies : {kReplicated, kHostShared, kSharded}) {
    EXPECT_EQ(passes({.kind = kParameterServer, .parameters = copies}, {2}),
              "strategy 'parameter_server' has the parameters on servers; leave out parameters, or "
              "use 'ddp'");
  }
  EXPECT_EQ(plan_for({.kind = kParameterServer}, shape(2), {.ranks_per_host = {2}},
                     {.trust_ratios = true})
                .take_or_throw()
                .strategy,
            "one_device+parameter_server")
      << "servers have the norms";
}

// Each rank has a part of the optimizer's state, and reads the gradients of all ranks for it.
TEST(HostShared, AnUpdateReadsTheGradientsOfAllRanks) {
  const auto seconds = [](int ranks) {
    const StepPlan p = *compose(one_device(shape(2)), host_shared(1, ranks));
    const analysis::ComputeTimes times{
        .forward = {0, 0}, .backward = {0, 0}, .update = 12, .gradient = 2};
    const auto update = std::ranges::find(p.actions, ActionKind::kUpdate, &plan::Action::kind);
    return analysis::compute_times(p, times)(0, *update);
  };
  EXPECT_DOUBLE_EQ(seconds(2), (12.0 + 2) / 2);
  EXPECT_DOUBLE_EQ(seconds(4), (12.0 + 3 * 2) / 4);
}

TEST(HostShared, SharesWithinAHostAndReducesBetweenHosts) {
  const auto one = compose(one_device(shape(2)), host_shared(1, 4));
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  EXPECT_TRUE(actions_of(*one, ActionKind::kAllReduce).empty());
  EXPECT_EQ(actions_of(*one, ActionKind::kShareGradients).size(), 1u);
  EXPECT_EQ(compose(one_device(shape(2)), mirrored(2), host_shared(1, 2)).status().code(),
            Code::kBadPlan);
}

}  // namespace
}  // namespace stormo::parallel
