// Tensor parallelism as plans: who has what, what is added up, and what is refused. That ranks do
// what these plans say is tested in tests/unit/train/model_parallel_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/step/step_simulate.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/gradient_scale.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/inside_layers/sequence_parallel.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/sharding/sharded.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using plan::ActionKind;
using plan::StepPlan;

/// An embedding, two blocks and a head, as a GPT of width 8, 4 heads and 10 words has them.
plan::ModelShape transformer() {
  const auto split = [](std::string name, std::int64_t elements, plan::Split how) {
    plan::ParameterShape p{.name = std::move(name), .elements = elements};
    p.split = how;
    return p;
  };
  plan::ModelShape out;
  out.segments.push_back({.name = "embedding",
                          .parameters = {split("embedding.token", 80, {.units = 10})},
                          .flops_per_sample = 10,
                          .borrowed = {}});
  out.segments.back().sums.forward = {16};
  for (const std::string name : {"block0", "block1"}) {
    out.segments.push_back({.name = name,
                            .parameters = {{name + ".norm", 8},
                                           split(name + ".qkv", 192, {.blocks = 3, .units = 4}),
                                           split(name + ".projection", 64, {.dim = 1, .units = 4})},
                            .flops_per_sample = 100,
                            .borrowed = {}});
    out.segments.back().heads = 4;
    out.segments.back().sums = {.forward = {16}, .backward = {16}, .loss = {}};
  }
  out.segments.push_back(
      {.name = "head", .parameters = {{"head.norm", 8}}, .flops_per_sample = 50, .borrowed = {0}});
  out.segments.back().sums = {.forward = {}, .backward = {16}, .loss = {2, 4}};
  out.segments.back().splits_output = true;
  return out;
}

StepPlan plan_of(const std::vector<Pass>& passes) {
  return compose(one_device(transformer()), passes).take_or_throw();
}

TEST(TensorParallel, APlanSaysHowParametersAreSplit) {
  const StepPlan p = plan_of({tensor_parallel(2)});
  EXPECT_EQ(p.strategy, "one_device+tensor2");
  const std::string text = to_text(p);
  for (const char* line :
       {"mesh tp=2\n", "segment 0: embedding flops=10 sums 16\n",
        "segment 1: block0 flops=100 heads 4 sums 16 gradient_sums 16\n",
        "segment 3: head flops=50 borrows 0 gradient_sums 16 loss_sums 2,4 splits_output\n",
        "  parameter 2: block0.qkv elements=192 type=float32 split 4 blocks 3\n",
        "  parameter 3: block0.projection elements=64 type=float32 split 4 dim 1\n",
        "state parameters split\n", "action 2: loss over tp\n"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  }
  EXPECT_EQ(*plan::parse_step_plan(text), p);
  StepPlan other = p;
  other.model.segments[1].parameters[1].split.blocks = 1;
  EXPECT_NE(hash(p), hash(other));
}

TEST(TensorParallel, ARankHasItsSlicesAndTheRestAsAWhole) {
  const StepPlan p = plan_of({tensor_parallel(4)});
  // of 10 words 2, 3, 2, 3
  for (const auto& [rank, words] : std::map<Rank, std::int64_t>{{0, 2}, {1, 3}, {2, 2}, {3, 3}}) {
    const StepPlan own = project(p, rank);
    EXPECT_EQ(own.actions, p.actions);
    EXPECT_EQ(own.model.segments[0].parameters[0].elements, 8 * words);
    EXPECT_EQ(own.model.segments[1].parameters[0].elements, 8);
    EXPECT_EQ(own.model.segments[1].parameters[1].elements, 48);
    EXPECT_EQ(own.model.segments[1].parameters[2].elements, 16);
    EXPECT_EQ(*plan::parse_step_plan(to_text(own)), own);
  }
}

TEST(TensorParallel, IsTheInnermostAxis) {
  const StepPlan p = plan_of({micro_batches(4), pipeline({}), tensor_parallel(2), mirrored(3)});
  EXPECT_EQ(to_text(p.mesh), "mesh v1 dp=3 pp=2 tp=2\n");
  for (Rank r = 0; r < 12; ++r) {
    EXPECT_EQ(data_part(p.mesh, r), (plan::Part{r / 4, 3}));
    EXPECT_EQ(stage_of(p.mesh, r), r / 2 % 2);
    EXPECT_EQ(slice_of(p.mesh, r), (plan::Part{r % 2, 2}));
    EXPECT_EQ(random_stream(p, r), r / 2);
  }
  // the tied weight is on both stages, in slices
  EXPECT_EQ(project(p, 2).model.segments[0].parameters[0].elements, 40);
  EXPECT_FALSE(project(p, 2).model.segments[0].parameters[0].elsewhere);
  EXPECT_TRUE(project(p, 2).model.segments[1].parameters[1].elsewhere);
  EXPECT_EQ(project(p, 2).model.segments[1].parameters[1].elements, 192);
}

/// The same of 2 positions, of which ranks can have parts.
plan::ModelShape transformer_by_positions() {
  plan::ModelShape out = transformer();
  for (plan::SegmentShape& s : out.segments) {
    s.positions = 2;
    s.keys = s.heads > 0 ? 32 : 0;
  }
  return out;
}

/// On ranks that have these parts.
StepPlan sequence_plan_of(std::vector<Pass> passes) {
  passes.push_back(sequence_parallel());
  return compose(one_device(transformer_by_positions()), passes).take_or_throw();
}

/// The elements of each collective over tp, by the kind of its action.
std::map<ActionKind, std::vector<std::int64_t>> added_up(const StepPlan& p, std::int64_t samples) {
  analysis::StepSizes sizes;
  sizes.samples = samples;
  std::map<ActionKind, std::vector<std::int64_t>> out;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    for (const analysis::Collective& c : analysis::collectives_of(p, i, sizes)) {
      if (c.axes == std::vector<std::string>{plan::kTensorAxis}) {
        out[p.actions[i].kind].push_back(c.elements);
      }
    }
  }
  return out;
}

TEST(TensorParallel, EachBlockAddsUpOnceForwardAndOnceBackward) {
  auto sums = added_up(plan_of({tensor_parallel(2)}), 5);
  EXPECT_EQ(sums[ActionKind::kForward], (std::vector<std::int64_t>{80, 80, 80}));
  EXPECT_EQ(sums[ActionKind::kBackward], (std::vector<std::int64_t>{80, 80, 80}));
  EXPECT_EQ(sums[ActionKind::kLoss], (std::vector<std::int64_t>{10, 20}));
  sums = added_up(plan_of({tensor_parallel(2), recompute()}), 5);
  // of the blocks
  EXPECT_EQ(sums[ActionKind::kRecompute], (std::vector<std::int64_t>{80, 80}));
  // gradients stop where nothing in front is trained
  plan::ModelShape frozen = transformer();
  for (const std::size_t s : {0, 1}) {
    for (plan::ParameterShape& q : frozen.segments[s].parameters) q.trainable = false;
  }
  frozen.segments[3].borrowed.clear();
  const StepPlan p = *compose(one_device(frozen), {tensor_parallel(2)});
  EXPECT_EQ(added_up(p, 5)[ActionKind::kBackward].size(), 1U);  // of the head
}

TEST(TensorParallel, GradientsOfReplicasAreThoseOfSlices) {
  const StepPlan p = plan_of({tensor_parallel(2), mirrored(2)});
  std::int64_t elements = 0;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    for (const analysis::Collective& c : analysis::collectives_of(p, i, {})) {
      if (p.actions[i].kind != ActionKind::kAllReduce || c.only_between_hosts) continue;
      EXPECT_EQ(c.axes, std::vector<std::string>{"dp"});
      elements += c.elements;
    }
  }
  EXPECT_EQ(elements, 40 + 2 * (8 + 96 + 32) + 8 + 8);  // and a flag for each of 8 parameters
}

TEST(TensorParallel, TakesTheTimeOfItsPartAndOfItsSums) {
  const StepPlan p = plan_of({tensor_parallel(2)});
  const analysis::ComputeTimes times{
      .forward = {1, 2, 2, 1}, .backward = {1, 4, 4, 2}, .loss = 1, .update = 10};
  analysis::StepSizes sizes;
  sizes.samples = 1;
  const auto s = analysis::simulate(p, {2}, sizes,
                                    {.compute = analysis::compute_times(p, times),
                                     .collective = [](auto&, auto&) { return 0.5; }})
                     .take_or_throw();
  // 8 sums; of 616 parameters a rank updates 320
  EXPECT_DOUBLE_EQ(s.seconds, 6 + 11 + 1 + 8 * 0.5 + 10 * 320.0 / 616);
  EXPECT_DOUBLE_EQ(s.compute[0], s.seconds - 4);
}

TEST(TensorParallel, MemoryIsThatOfSlices) {
  const StepPlan p = plan_of({tensor_parallel(2)});
  const analysis::StepMemory m = analysis::memory(p, {.optimizer_numbers = 2});
  EXPECT_EQ(m.between_steps.parameters, 4 * 320);
  EXPECT_EQ(m.between_steps.optimizer_state, 2 * 4 * 320);
}

TEST(TensorParallel, RefusesWhatCannotBeCut) {
  const auto why = [](const plan::ModelShape& model, int ranks) {
    return compose(one_device(model), {tensor_parallel(ranks)}).status().message();
  };
  EXPECT_NE(why(transformer(), 3)
                .find("segment 'block0' has 4 heads of attention, which 3 ranks do "
                      "not divide evenly; use one of 1, 2, 4 ranks"),
            std::string::npos);
  plan::ModelShape model = transformer();
  model.segments[0].parameters[0].split.units = 2;
  EXPECT_NE(why(model, 4).find("'embedding.token' can be cut into 2 parts, not into 4"),
            std::string::npos);
  model = {.segments = {{.name = "module", .parameters = {{"weight", 4}}}}};
  EXPECT_NE(why(model, 2).find("no layer of the model can be cut"), std::string::npos);
  EXPECT_NE(why(transformer(), 1).find("give at least 2"), std::string::npos);
  EXPECT_NE(compose(one_device(transformer()), {tensor_parallel(2), tensor_parallel(2)})
                .status()
                .message()
                .find("apply it once"),
            std::string::npos);
}

TEST(TensorParallel, AStrategyOfTwoOrThreeAxes) {
  const auto plan_for_ranks = [](int ranks, const Strategy& s, const StepOptions& step = {}) {
    return plan_for(s, transformer(), {.ranks_per_host = {ranks}}, step);
  };
  EXPECT_EQ(to_text(plan_for_ranks(8, {.pipeline = 2, .tensor = 2}, {.micro_batches = 4})->mesh),
            "mesh v1 dp=2 pp=2 tp=2\n");
  EXPECT_EQ(to_text(plan_for_ranks(4, {.tensor = 4})->mesh), "mesh v1 tp=4\n");
  EXPECT_NE(
      plan_for_ranks(6, {.pipeline = 2, .tensor = 2})
          .status()
          .message()
          .find(
              "replicas of 4 ranks (pipeline 2, tensor 2, context 1), and 6 ranks are no multiple"),
      std::string::npos);
  EXPECT_NE(plan_for_ranks(2, {.kind = Strategy::Kind::kCentralStorage, .tensor = 2})
                .status()
                .message()
                .find("does not cut replicas"),
            std::string::npos);
}

// The ranks that compute together are nearest to each other, then those that share a copy.
TEST(TensorParallel, ShardsOfSlices) {
  plan::ModelShape model = transformer();
  for (plan::SegmentShape& segment : model.segments) {
    for (plan::ParameterShape& each : segment.parameters) each.elements *= 64;  // no padding
  }
  const auto plan_on = [&](const std::vector<int>& hosts, const Strategy& s) {
    return plan_for(s, model, {.ranks_per_host = hosts}, {.clip = true});
  };
  Strategy s{.kind = Strategy::Kind::kFsdp, .tensor = 2};
  EXPECT_NE(plan_on({2}, s).status().message().find("has nothing to shard: all 2 ranks"),
            std::string::npos);
  const StepPlan p = plan_on({4}, s).take_or_throw();
  EXPECT_EQ(to_text(p.mesh), "mesh v1 shard=2 tp=2\n");
  EXPECT_EQ(p.parameters, (std::vector{plan::Placement::kShard, plan::Placement::kSplit}));
  EXPECT_EQ(p.optimizer_state, p.parameters);
  const auto norm = std::ranges::find(p.actions, plan::ActionKind::kNorm, &plan::Action::kind);
  EXPECT_EQ(norm->axes, (std::vector<std::string>{plan::kTensorAxis, kShardAxis}));
  // of what is split, a rank has a quarter
  const plan::ModelShape largest = largest_model_of(p.model, p.mesh, 0);
  std::int64_t sliced = 0;
  for (const plan::ParameterShape* each : flatten(largest)) sliced += each->elements;
  EXPECT_EQ(analysis::memory(p, {.optimizer_numbers = 2}).peak.optimizer_state, sliced / 2 * 2 * 4);
  s.hybrid = true;
  EXPECT_EQ(to_text(plan_on({4, 4}, s)->mesh), "mesh v1 dp=2 shard=2 tp=2\n");
  for (const auto& [tensor, hosts] : {std::pair(3, std::vector{4, 4, 4}), {2, {2, 2}}}) {
    s.tensor = tensor;
    EXPECT_NE(plan_on(hosts, s).status().message().find("leave out hybrid"), std::string::npos);
  }
}

TEST(TensorParallel, VerifyRefusesAnotherPlan) {
  const StepPlan good = plan_of({clip_gradients(), tensor_parallel(2)});
  const auto why = [&](const auto& change) {
    StepPlan p = good;
    change(p);
    return analysis::verify(p).message();
  };
  const auto action = [](StepPlan& p, ActionKind kind) -> plan::Action& {
    return *std::ranges::find(p.actions, kind, &plan::Action::kind);
  };
  EXPECT_NE(why([&](StepPlan& p) {
              action(p, ActionKind::kLoss).axes.clear();
            }).find("needs axis 'tp', whose ranks have parts of the output"),
            std::string::npos);
  EXPECT_NE(why([](StepPlan& p) {
              p.model.segments.back().splits_output = false;
            }).find("takes no axis: each rank has the whole output"),
            std::string::npos);
  EXPECT_NE(why([&](StepPlan& p) {
              action(p, ActionKind::kNorm).axes.clear();
            }).find("leaves out the parts of other ranks of tp"),
            std::string::npos);
  EXPECT_NE(why([](StepPlan& p) {
              p.parameters = {plan::Placement::kReplicate};
            }).find("all is split over 'tp'"),
            std::string::npos);
  EXPECT_NE(why([](StepPlan& p) { p.model.segments[1].heads = 3; }).find("has 3 heads"),
            std::string::npos);
  EXPECT_NE(why([](StepPlan& p) {
              p.model.segments[1].parameters[1].split.units = 5;
            }).find("does not consist of 3 times 5 equal units"),
            std::string::npos);
}

TEST(SequenceParallel, APlanSaysWhereGradientsAreTerms) {
  const StepPlan p = sequence_plan_of({micro_batches(2), tensor_parallel(2), mirrored(2)});
  EXPECT_EQ(p.strategy, "one_device+micro_batches2+tensor2+mirrored+sequence_parallel");
  const std::string text = to_text(p);
  for (const char* line :
       {"mesh dp=2 tp=2\n", "step micro_batches=2 sequence_parallel\n",
        "segment 0: embedding flops=10 sums 16 positions 2\n",
        "segment 1: block0 flops=100 heads 4 sums 16 gradient_sums 16 positions 2 keys 32\n",
        "action 7: all_reduce_unsplit 0-7 ", "action 8: all_reduce 0-7 over dp"}) {
    EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
  }
  EXPECT_EQ(*plan::parse_step_plan(text), p);
  // each position is dropped out by itself
  for (Rank r = 0; r < 4; ++r) EXPECT_EQ(random_stream(p, r), r);
}

TEST(SequenceParallel, GathersWhereASplitBeginsAndScattersWhereItEnds) {
  using enum plan::GoalKind;
  using Kinds = std::vector<std::pair<plan::GoalKind, std::int64_t>>;
  analysis::StepSizes sizes;
  sizes.samples = 5;
  const auto over_tp = [&](const StepPlan& p, ActionKind kind) {
    Kinds out;
    for (std::size_t i = 0; i < p.actions.size(); ++i) {
      if (p.actions[i].kind != kind) continue;
      for (const analysis::Collective& c : analysis::collectives_of(p, i, sizes)) {
        if (c.axes == std::vector<std::string>{plan::kTensorAxis}) {
          out.emplace_back(c.goal, c.elements);
        }
      }
    }
    return out;
  };
  // embedding, two blocks, head; each pair sends what an all-reduce sends
  const StepPlan p = sequence_plan_of({tensor_parallel(2)});
  const Kinds block = {{kAllGather, 80}, {kReduceScatter, 80}};
  EXPECT_EQ(over_tp(p, ActionKind::kForward),
            (Kinds{{kReduceScatter, 80}, block[0], block[1], block[0], block[1], block[0]}));
  EXPECT_EQ(over_tp(p, ActionKind::kBackward),
            (Kinds{block[1], block[0], block[1], block[0], block[1], block[0]}));
  EXPECT_EQ(over_tp(p, ActionKind::kLoss), (Kinds{{kAllReduce, 10}, {kAllReduce, 20}}));
  EXPECT_EQ(over_tp(p, ActionKind::kAllReduceUnsplit), (Kinds{{kAllReduce, 24}}));  // the norms
  EXPECT_EQ(over_tp(sequence_plan_of({tensor_parallel(2), recompute()}), ActionKind::kRecompute),
            (Kinds{block[1], block[0], block[1]}));  // of the embedding and the first block
  // without what is trained in front of a block its gradients go no further
  plan::ModelShape frozen = transformer_by_positions();
  for (const std::size_t s : {0, 1}) {
    for (plan::ParameterShape& q : frozen.segments[s].parameters) q.trainable = false;
  }
  frozen.segments[3].borrowed.clear();
  const StepPlan q = *compose(one_device(frozen), {tensor_parallel(2), sequence_parallel()});
  EXPECT_EQ(over_tp(q, ActionKind::kBackward), (Kinds{block[1], block[0]}));
}

TEST(SequenceParallel, BetweenLayersARankKeepsAndMovesItsPositions) {
  const std::vector<std::int64_t> outputs(4, 64);
  const std::vector<Pass> staged = {micro_batches(2), pipeline({}), tensor_parallel(2)};
  const auto moved = [&](const StepPlan& p) {
    analysis::StepSizes sizes;
    sizes.outputs = outputs;
    return analysis::moved_bytes(
        p, *std::ranges::find(p.actions, ActionKind::kMoveActivation, &plan::Action::kind), sizes);
  };
  EXPECT_EQ(moved(plan_of(staged)), 64);
  EXPECT_EQ(moved(sequence_plan_of(staged)), 32);
  const auto kept = [&](const StepPlan& p) {
    const auto peak =
        analysis::memory(p, {.activations = {0, 0, 0, 8000}, .outputs = outputs}).peak;
    return peak.activations;
  };
  // of two groups of segments the input of the second one is kept
  EXPECT_EQ(kept(plan_of({tensor_parallel(2), recompute()})), 64 + 8000);
  EXPECT_EQ(kept(sequence_plan_of({tensor_parallel(2), recompute()})), 32 + 8000);
}

// Each stage adds up its own; the order of the plan has them in front of what the others read.
TEST(SequenceParallel, AddsUpWhereGradientsAreComplete) {
  const auto texts = [](const StepPlan& p) {
    std::vector<std::string> out;
    for (const plan::Action& a : p.actions) {
      if (a.kind == ActionKind::kAllReduceUnsplit) out.push_back(to_text(a));
    }
    return out;
  };
  EXPECT_EQ(texts(sequence_plan_of({micro_batches(2), pipeline({}), tensor_parallel(2)})),
            (std::vector<std::string>{"all_reduce_unsplit 4-7", "all_reduce_unsplit 0-3"}));
  EXPECT_EQ(texts(sequence_plan_of(
                {micro_batches(2), pipeline({.schedule = pipedream_2bw()}), tensor_parallel(2)})),
            (std::vector<std::string>{"all_reduce_unsplit 0-3 delay 1", "all_reduce_unsplit 4-7"}));
  // the embedding has no whole parameter
  EXPECT_EQ(texts(sequence_plan_of({tensor_parallel(2), sharded({.stage = 3, .ranks = 2})})),
            (std::vector<std::string>{"all_reduce_unsplit 7-7", "all_reduce_unsplit 4-6",
                                      "all_reduce_unsplit 1-3"}));
}

TEST(SequenceParallel, RefusesWhatHasNoPositionsForEachRank) {
  const auto why = [](const plan::ModelShape& model, const std::vector<Pass>& passes) {
    return compose(one_device(model), passes).status().message();
  };
  const std::vector<Pass> both = {tensor_parallel(2), sequence_parallel()};
  const auto changed = [&](const auto& change) {
    plan::ModelShape model = transformer_by_positions();
    change(model.segments);
    return why(model, both);
  };
  EXPECT_NE(why(transformer(), both)
                .find("segment 'embedding' does not compute parts of the positions of a sample"),
            std::string::npos);
  EXPECT_NE(why(transformer_by_positions(), {tensor_parallel(4), sequence_parallel()})
                .find("segment 'embedding' has 2 positions, which 4 ranks do not divide evenly; "
                      "use a multiple of 4 positions (model.context)"),
            std::string::npos);
  EXPECT_NE(
      why(transformer_by_positions(), {sequence_parallel()}).find("apply tensor_parallel() first"),
      std::string::npos);
  EXPECT_NE(why(transformer_by_positions(), {both[0], both[1], both[1]}).find("apply it once"),
            std::string::npos);
  EXPECT_NE(changed([](auto& s) {
              s[1].sums.backward.clear();
            }).find("segment 'block0' begins 0 splits and ends 1. With sequence_parallel"),
            std::string::npos);
  EXPECT_NE(changed([](auto& s) {
              s[3].splits_output = false;
            }).find("needs an output in parts of the last segment, 'head'"),
            std::string::npos);
  EXPECT_NE(changed([](auto& s) { s[1].heads = 0; }).find("attention whose heads are not split"),
            std::string::npos);
  EXPECT_NE(plan_for({.sequence_parallel = true}, transformer_by_positions(), {{2}})
                .status()
                .message()
                .find("set tensor to 2 or more, or leave out sequence_parallel"),
            std::string::npos);
}

TEST(SequenceParallel, VerifyRefusesAnotherPlan) {
  const auto why = [](StepPlan p, const auto& change) {
    change(p);
    return analysis::verify(p).message();
  };
  const auto position = [](StepPlan& p, ActionKind kind) {
    return std::ranges::find(p.actions, kind, &plan::Action::kind);
  };
  const StepPlan good = sequence_plan_of({tensor_parallel(2)});
  EXPECT_NE(
      why(good, [&](StepPlan& p) { p.actions.erase(position(p, ActionKind::kAllReduceUnsplit)); })
          .find("(block0.norm) are partial over tp"),
      std::string::npos);
  EXPECT_NE(why(good,
                [&](StepPlan& p) {
                  position(p, ActionKind::kAllReduceUnsplit)->range = {0, 0};
                })
                .find("finds nothing to add up"),
            std::string::npos);
  EXPECT_NE(why(good, [](StepPlan& p) { p.sequence_parallel = false; })
                .find("finds no ranks that have parts of the positions"),
            std::string::npos);
  EXPECT_NE(why(good, [](StepPlan& p) { p.model.segments[2].positions = 3; })
                .find("segment 'block1' has 3 positions, which 2 ranks do not divide evenly"),
            std::string::npos);
  // what a reduce_scatter leaves is not whole
  const StepPlan shards = sequence_plan_of({tensor_parallel(2), sharded({.stage = 2, .ranks = 2})});
  EXPECT_NE(why(shards,
                [&](StepPlan& p) {
                  const auto sum = position(p, ActionKind::kAllReduceUnsplit);
                  const plan::Action last = *sum;
                  p.actions.erase(sum);
                  p.actions.insert(position(p, ActionKind::kFindUnused), last);
                })
                .find("needs whole terms of each rank"),
            std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
