// Context parallelism as plans: who has which positions, what is exchanged and averaged, and what
// is refused. That ranks do what these plans say is tested in
// tests/unit/train/model_parallel_test.cc.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/computation/micro_batches.h>
#include <stormo/parallel/computation/recompute.h>
#include <stormo/parallel/inside_layers/context_parallel.h>
#include <stormo/parallel/inside_layers/tensor_parallel.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/pass.h>
#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/replicas/mirrored.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>

namespace stormo::parallel {
namespace {

using analysis::Collective;
using plan::ActionKind;
using plan::AttentionForm;
using plan::GoalKind;
using plan::StepPlan;

/// An embedding, two blocks and a head: 12 positions, width 8, 4 heads.
plan::ModelShape transformer() {
  plan::ModelShape out;
  for (const std::string name : {"embedding", "block0", "block1", "head"}) {
    const bool block = name.starts_with("block");
    plan::ParameterShape weight{.name = name + ".weight", .elements = 80};
    weight.split = {.units = 4};
    out.segments.push_back({.name = name,
                            .parameters = {weight},
                            .flops_per_sample = 100,
                            .borrowed = {},
                            .heads = block ? 4 : 0,
                            .positions = 12,
                            .keys = block ? 192 : 0});
  }
  out.segments[1].sums.forward = {96};
  return out;
}

plan::ModelShape cut_by_positions() {
  return without_unused_forms(transformer(), {.positions = true});
}

StepPlan plan_of(const std::vector<Pass>& passes) {
  return compose(one_device(cut_by_positions()), passes).take_or_throw();
}

TEST(ContextParallel, APlanSaysWhatIsExchangedAndAveraged) {
  for (const AttentionForm form : plan::kAttentionForms) {
    const StepPlan p = plan_of({context_parallel(2, form)});
    EXPECT_EQ(p.strategy, "one_device+context2_" + std::string(to_string(form)));
    const std::string text = to_text(p);
    for (const char* line : {"mesh cp=2\n", "segment 0: embedding flops=100 positions 12\n",
                             "segment 1: block0 flops=100 heads 4 positions 12 keys 192\n",
                             "state parameters replicate\n", "all_reduce 0-3 over cp"}) {
      EXPECT_NE(text.find(line), std::string::npos) << line << " in\n" << text;
    }
    EXPECT_EQ(text.find("micro_batches=1 attention heads\n") != std::string::npos,
              form == AttentionForm::kHeads);
    EXPECT_EQ(*plan::parse_step_plan(text), p);
  }
  StepPlan p = plan_of({context_parallel(2, AttentionForm::kRing)});
  const std::uint64_t before = hash(p);
  for (const auto& change :
       std::vector<void (*)(StepPlan&)>{[](StepPlan& q) { q.attention = AttentionForm::kHeads; },
                                        [](StepPlan& q) { q.model.segments[1].keys = 1; },
                                        [](StepPlan& q) { q.model.segments[1].positions = 4; }}) {
    StepPlan other = p;
    change(other);
    EXPECT_NE(hash(other), before);
  }
}

TEST(ContextParallel, RanksOfASampleLoadTheSame) {
  const StepPlan p =
      compose(one_device(transformer()), micro_batches(4), pipeline({}),
              context_parallel(2, AttentionForm::kHeads), tensor_parallel(2), mirrored(3))
          .take_or_throw();
  EXPECT_EQ(to_text(p.mesh), "mesh v1 dp=3 pp=2 cp=2 tp=2\n");
  for (Rank r = 0; r < 24; ++r) {
    EXPECT_EQ(data_part(p.mesh, r), (plan::Part{r / 8, 3}));
    EXPECT_EQ(stage_of(p.mesh, r), r / 4 % 2);
    EXPECT_EQ(context_part(p.mesh, r), (plan::Part{r / 2 % 2, 2}));
    EXPECT_EQ(slice_of(p.mesh, r), (plan::Part{r % 2, 2}));
    EXPECT_EQ(copy_of_model(p.mesh, r), (plan::Part{r / 8 * 2 + r / 2 % 2, 6}));
    EXPECT_EQ(random_stream(p, r), r / 2);  // positions have random numbers of their own
  }
  EXPECT_EQ(plan::model_axes(p.mesh), (std::vector<std::string>{"pp", "tp"}));
  // the averages over both axes are one
  for (const plan::Action& a : p.actions) {
    if (a.kind != ActionKind::kAllReduce) continue;
    EXPECT_EQ(a.axes, (std::vector<std::string>{"dp", "cp"}));
  }
  EXPECT_EQ(std::ranges::count(p.actions, ActionKind::kAllReduce, &plan::Action::kind), 2);
}

/// The collectives of all actions of a kind, for 5 samples.
std::vector<Collective> exchanged(const StepPlan& p, ActionKind kind) {
  analysis::StepSizes sizes;
  sizes.samples = 5;
  std::vector<Collective> out;
  for (std::size_t i = 0; i < p.actions.size(); ++i) {
    if (p.actions[i].kind != kind) continue;
    for (const Collective& c : analysis::collectives_of(p, i, sizes)) out.push_back(c);
  }
  return out;
}

Collective over(const char* axis, GoalKind goal, std::int64_t elements,
                const std::string& algorithm = {}) {
  return {.goal = goal,
          .elements = elements,
          .dtype = DType::kFloat32,
          .axes = {axis},
          .algorithm = algorithm};
}

/// Each rank sends to the next one, whichever host that is on.
Collective keys_of_all(std::int64_t elements) {
  return over("cp", GoalKind::kAllGather, elements, "ring_all_gather");
}

TEST(ContextParallel, AttentionExchangesKeysOrHeads) {
  const auto cp = [](GoalKind goal, std::int64_t elements) { return over("cp", goal, elements); };
  const Collective keys = keys_of_all(960);
  const Collective terms = over("cp", GoalKind::kReduceScatter, 960, "ring_reduce_scatter");
  const StepPlan ring = plan_of({context_parallel(2, AttentionForm::kRing)});
  EXPECT_EQ(exchanged(ring, ActionKind::kForward), (std::vector<Collective>{keys, keys}));
  EXPECT_EQ(exchanged(ring, ActionKind::kBackward),
            (std::vector<Collective>{keys, terms, keys, terms}));
  const StepPlan again = plan_of({context_parallel(2, AttentionForm::kRing), recompute()});
  EXPECT_EQ(exchanged(again, ActionKind::kRecompute), (std::vector<Collective>{keys}));  // block0
  // q, k and v, then the result
  const Collective there = cp(GoalKind::kAllToAll, 1440), back = cp(GoalKind::kAllToAll, 480);
  const StepPlan heads = plan_of({context_parallel(2, AttentionForm::kHeads)});
  for (const ActionKind kind : {ActionKind::kForward, ActionKind::kBackward}) {
    EXPECT_EQ(exchanged(heads, kind), (std::vector<Collective>{there, back, there, back}));
  }
  // no gradient goes further than the first segment that is trained
  plan::ModelShape frozen = cut_by_positions();
  for (const std::size_t s : {0, 1}) frozen.segments[s].parameters[0].trainable = false;
  const StepPlan p =
      compose(one_device(frozen), context_parallel(2, AttentionForm::kRing)).take_or_throw();
  EXPECT_EQ(exchanged(p, ActionKind::kBackward), (std::vector<Collective>{keys, terms}));
}

TEST(ContextParallel, WithTensorParallelismBothSendParts) {
  const StepPlan p = compose(one_device(transformer()), context_parallel(2, AttentionForm::kRing),
                             tensor_parallel(2))
                         .take_or_throw();
  const Collective keys = keys_of_all(480);                      // of half of the heads
  const Collective sum = over("tp", GoalKind::kAllReduce, 240);  // of half of the positions
  EXPECT_EQ(exchanged(p, ActionKind::kForward), (std::vector<Collective>{sum, keys, keys}));
}

TEST(ContextParallel, ARankKeepsAndMovesItsPositions) {
  const StepPlan p =
      plan_of({micro_batches(2), pipeline({}), context_parallel(2, AttentionForm::kRing)});
  analysis::StepSizes sizes;
  sizes.outputs = {100, 100, 100, 100};
  for (const plan::Action& a : p.actions) {
    EXPECT_EQ(analysis::moved_bytes(p, a, sizes), row_of(a.kind).moves() ? 50 : 0);
  }
  const analysis::MemorySizes memory{.activations = {0, 0, 0, 0}, .outputs = {100, 100, 100, 100}};
  const StepPlan again = plan_of({context_parallel(2, AttentionForm::kRing), recompute()});
  EXPECT_EQ(analysis::memory(again, memory).peak.activations, 50);  // the input of the second group
}

TEST(ContextParallel, WhatCannotBeSharedIsRefused) {
  const auto why = [](plan::ModelShape model, int ranks,
                      AttentionForm form = AttentionForm::kRing) {
    return compose(one_device(std::move(model)), context_parallel(ranks, form)).status().message();
  };
  const auto expect = [](const std::string& message, const std::string& part) {
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  expect(why(cut_by_positions(), 4), "12 positions, which are not 2 equal chunks for each of 4");
  expect(why(cut_by_positions(), 3, AttentionForm::kHeads), "use attention 'ring'");
  plan::ModelShape no_heads = cut_by_positions();
  for (plan::SegmentShape& s : no_heads.segments) s.heads = 0;
  expect(why(no_heads, 2, AttentionForm::kHeads), "'block0' has 0 heads of attention");
  expect(why(cut_by_positions(), 1), "give at least 2");
  expect(why(without_unused_forms(transformer(), {}), 2),
         "does not compute parts of the positions");
  const Pass two = context_parallel(2, AttentionForm::kRing);
  expect(compose(one_device(cut_by_positions()), two, two).status().message(), "apply it once");
  const auto strategy = [](Strategy s, int ranks, const StepOptions& step = {}) {
    return plan_for(s, transformer(), {.ranks_per_host = {ranks}}, step).status().message();
  };
  expect(strategy({.context = 2}, 3), "replicas of 2 ranks (pipeline 1, tensor 1, context 2)");
  expect(strategy({.tensor = 4, .context = 2, .attention = AttentionForm::kHeads}, 8),
         "4 heads of attention, which 4 times 2 ranks do not divide evenly; use attention 'ring'");
  expect(strategy({.context = 0}, 2), "positions on at least 1 rank, not 0");
  expect(strategy({.kind = Strategy::Kind::kParameterAveraging, .context = 2}, 2),
         "leave out context, or use");
  expect(strategy({.context = 2}, 2, {.bucket_bytes = 8}), "leave out bucket_bytes");
}

TEST(ContextParallel, VerifyRefusesAnotherPlan) {
  const StepPlan good = plan_of({context_parallel(2, AttentionForm::kHeads)});
  ASSERT_TRUE(analysis::verify(good).ok());
  const auto expect_refused = [](const StepPlan& p, const std::string& part) {
    const Status refused = analysis::verify(p);
    EXPECT_EQ(refused.code(), Code::kBadPlan);
    EXPECT_NE(refused.message().find(part), std::string::npos) << refused.message();
  };
  StepPlan p = good;
  p.model.segments[1].positions = 6;
  expect_refused(p, "6 positions, which are not 2 equal chunks for each of the 2 ranks of 'cp'");
  p = good;
  p.model.segments[1].positions = 8;
  expect_refused(p, "'block0' has 8 positions, and the first segment 12");
  p = compose(one_device(cut_by_positions())).take_or_throw();
  p.attention = AttentionForm::kHeads;
  expect_refused(p, "attention 'heads' needs an axis 'cp'");
  p = good;
  p.model.segments[1].heads = 3;
  expect_refused(p, "3 heads, which 2 ranks do not divide evenly");
  p = good;
  p.parameters = p.optimizer_state = {plan::Placement::kShard};
  expect_refused(p, "all is replicated over 'cp'");
  p = good;
  std::erase_if(p.actions, [](const plan::Action& a) { return a.kind == ActionKind::kAllReduce; });
  expect_refused(p, "diverged over cp");
}

}  // namespace
}  // namespace stormo::parallel
