#include <stormo/plan/step_plan.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace stormo::plan {
namespace {

/// Two segments, the second of which reads a parameter of the first.
StepPlan sample() {
  StepPlan p;
  p.strategy = "sample";
  p.mesh = {{{"dp", 2}, {"shard", 4}}};
  p.micro_batches = 2;
  p.scaled_loss = true;
  p.clipped = true;
  p.model.segments = {
      {.name = "first",
       .parameters = {{"first.weight", 10}, {"first.scale", 2, DType::kFloat64, false}},
       .flops_per_sample = 20,
       .borrowed = {}},
      {.name = "second",
       .parameters = {{"second.weight", 30, DType::kBFloat16}},
       .flops_per_sample = 0,
       .borrowed = {0, 1}}};
  p.parameters = {Placement::kReplicate, Placement::kShard};
  p.frozen = {Placement::kReplicate, Placement::kReplicate};
  p.optimizer_state = {Placement::kReplicate, Placement::kShard};
  p.actions = {
      {.kind = ActionKind::kLoad},
      {.kind = ActionKind::kAllGather, .range = {0, 1}, .axes = {"shard"}, .asynchronous = true},
      {.kind = ActionKind::kForward, .range = {0, 1}, .micro_batch = 1},
      {.kind = ActionKind::kAllReduce, .range = {2, 2}, .axes = {"dp", "shard"}},
      {.kind = ActionKind::kAgree}};
  return p;
}

TEST(StepPlan, PrintsALineForEachSegmentParameterAndAction) {
  EXPECT_EQ(to_text(sample()),
            "step_plan v2 sample\n"
            "mesh dp=2 shard=4\n"
            "step micro_batches=2 scaled_loss clipped\n"
            "segment 0: first flops=20\n"
            "  parameter 0: first.weight elements=10 type=float32\n"
            "  parameter 1: first.scale elements=2 type=float64 frozen\n"
            "segment 1: second flops=0 borrows 0,1\n"
            "  parameter 2: second.weight elements=30 type=bfloat16\n"
            "state parameters replicate shard\n"
            "state frozen replicate replicate\n"
            "state optimizer replicate shard\n"
            "action 0: load\n"
            "action 1: all_gather 0-1 over shard async # first.weight .. first.scale\n"
            "action 2: forward 0-1 batch 1           # first .. second\n"
            "action 3: all_reduce 2-2 over dp,shard  # second.weight\n"
            "action 4: agree\n");
}

TEST(StepPlan, TextRoundTrips) {
  StepPlan odd = sample();
  odd.strategy = "a b";
  odd.model.segments[1].name = "block \"0\"";
  odd.model.segments[1].parameters[0].name = "line\nend # comment";
  odd.mesh.axes[0].name = "d,p";
  odd.actions[3].axes[0] = "d,p";
  StepPlan remote = sample();
  remote.mesh.axes.pop_back();
  remote.parameters = remote.optimizer_state = {Placement::kRemote};
  remote.frozen = {Placement::kReplicate};
  remote.actions = {{.kind = ActionKind::kPull, .range = {0, 2}, .axes = {"dp"}},
                    {.kind = ActionKind::kPush, .range = {0, 2}, .axes = {"dp"}}};
  for (const StepPlan& p : {StepPlan{}, sample(), odd, remote}) {
    const auto parsed = parse_step_plan(to_text(p));
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string() << "\n" << to_text(p);
    EXPECT_EQ(*parsed, p);
    EXPECT_EQ(hash(*parsed), hash(p));
  }
}

TEST(StepPlan, IsRemoteWhereServersHaveTheParameters) {
  StepPlan p = sample();
  EXPECT_FALSE(is_remote(p));
  EXPECT_FALSE(is_remote(StepPlan{}));
  p.parameters[1] = Placement::kRemote;
  EXPECT_TRUE(is_remote(p));
}

TEST(StepPlan, AnActionMayBeForEveryNthStep) {
  StepPlan p = sample();
  p.actions.back().every = 8;
  EXPECT_EQ(to_text(p.actions.back()), "agree every 8");
  EXPECT_EQ(parse_step_plan(to_text(p)).take_or_throw(), p);
  EXPECT_NE(hash(p), hash(sample()));
  p.parameters = p.optimizer_state = {Placement::kReplicate, Placement::kDiverged};
  EXPECT_EQ(parse_step_plan(to_text(p)).take_or_throw(), p);
  EXPECT_TRUE(is_diverged(p));
}

TEST(StepPlan, AReductionMayHaveACodecAndAnAlgorithm) {
  StepPlan p = sample();
  p.actions[3].codec = Codec::kBFloat16;
  EXPECT_EQ(to_text(p.actions[3]), "all_reduce 2-2 over dp,shard codec bfloat16");
  p.actions[3].algorithm = "ring_all_reduce";
  EXPECT_EQ(to_text(p.actions[3]),
            "all_reduce 2-2 over dp,shard codec bfloat16 by ring_all_reduce");
  EXPECT_EQ(parse_step_plan(to_text(p)).take_or_throw(), p);
}

TEST(StepPlan, ACodecMayHaveADensity) {
  StepPlan p = sample();
  p.actions[3].codec = {Codec::kTopK, 0.015};
  EXPECT_EQ(to_text(p.actions[3]), "all_reduce 2-2 over dp,shard codec top_k:0.015");
  EXPECT_EQ(parse_step_plan(to_text(p)).take_or_throw(), p);
  StepPlan other = p;
  other.actions[3].codec.density = 0.02;
  EXPECT_NE(hash(other), hash(p));
}

TEST(StepPlan, ACodecMayHaveARankOfMatricesAndAParameterRows) {
  StepPlan p = sample();
  p.actions[3].codec = Codec::powersgd(3);
  EXPECT_EQ(to_text(p.actions[3]), "all_reduce 2-2 over dp,shard codec powersgd:3");
  ParameterShape& parameter = p.model.segments[0].parameters[0];
  const std::string before = to_text(p);
  parameter.rows = parameter.elements;
  EXPECT_THAT(to_text(p), testing::HasSubstr(" rows " + std::to_string(parameter.rows)));
  EXPECT_NE(to_text(p), before);
  EXPECT_EQ(parse_step_plan(to_text(p)).take_or_throw(), p);
  StepPlan other = p;
  other.actions[3].codec.matrix_rank = 2;
  EXPECT_NE(hash(other), hash(p));
  other = p;
  other.model.segments[0].parameters[0].rows = 1;
  EXPECT_NE(hash(other), hash(p));
}

TEST(StepPlan, ErrorsNameLineColumnAndReason) {
  const auto message_of = [](const std::string& text) {
    return parse_step_plan(text).status().message();
  };
  const std::string head = "step_plan v2 x\nmesh dp=2\nstep micro_batches=2\n";
  const std::string state =
      head + "state parameters shard\nstate frozen replicate\nstate optimizer shard\n";
  EXPECT_EQ(message_of("step_plan v1 x"), "1:11: version 'v1' is unknown; this program reads v2");
  EXPECT_EQ(message_of("step_plan v2 x"), "1:15: expected 'mesh', found nothing");
  EXPECT_EQ(message_of(head + "segment 1: a flops=1"), "4:9: expected number 0");
  EXPECT_EQ(message_of(head + "segment 0: a flops=-1"),
            "4:20: flops must be in 0..9223372036854775807");
  EXPECT_EQ(message_of(head + "segment 0: a flops=1\nparameter 0: w elements=1 type=float8"),
            "5:32: 'float8' is not an element type; there are float32, float64, bfloat16, float16, "
            "int8, int16, int32, int64, uint8, bool");
  EXPECT_EQ(message_of(head + "state parameters partial"),
            "4:18: 'partial' is not a placement; there are replicate, shard, shared, remote, "
            "diverged, staged, split");
  EXPECT_EQ(message_of(state + "action 0: sleep"),
            "7:11: 'sleep' is not an action; there are load, choose, sum_weights, forward, loss, "
            "recompute, "
            "backward, "
            "backward_input, backward_weight, "
            "move_activation, move_gradient, all_gather, reshard, all_reduce, reduce_scatter, "
            "release_gradients, all_reduce_tied, all_reduce_unsplit, track, find_unused, "
            "share_gradients, "
            "share_parameters, "
            "pull, push, "
            "average, average_parameters, average_state, outer_update, elastic_average, mix, "
            "tournament, exchange_models, norm, "
            "unscale, clip, "
            "commit, "
            "update, agree");
  EXPECT_EQ(message_of(state + "action 0: update 2-1"),
            "7:20: the last of its range must be in 2..1048575");
  EXPECT_EQ(message_of(state + "action 0: load 1-1"),
            "7:16: unexpected text before the end of the line");
  EXPECT_EQ(message_of(state + "action 0: loss batch 2"), "7:22: a micro-batch must be in 0..1");
  EXPECT_EQ(message_of(state + "action 0: all_gather 0-0 over tp"),
            "7:31: axis 'tp' is not in the mesh");
  EXPECT_THAT(message_of(state + "action 0: all_reduce 0-0 over dp codec zip"),
              testing::StartsWith("7:40: 'zip' is not a codec; there are none, bfloat16, float16"));
  EXPECT_EQ(message_of(state + "action 0: all_reduce 0-0 over dp codec top_k"),
            "7:45: expected ':'");
  EXPECT_EQ(message_of(state + "action 0: average_state 0-0 slot 16 over dp"),
            "7:34: a slot of the optimizer must be in 0..15");
  EXPECT_EQ(message_of(state + "action 0: update 0-0 codec bfloat16"),
            "7:22: unexpected text before the end of the line");
}

TEST(StepPlan, HashFollowsEveryField) {
  std::vector<std::function<void(StepPlan&)>> changes = {
      [](StepPlan& p) { p.strategy = "other"; },
      [](StepPlan& p) { p.mesh.axes[0].size = 3; },
      [](StepPlan& p) { p.micro_batches = 3; },
      [](StepPlan& p) { p.scaled_loss = false; },
      [](StepPlan& p) { p.clipped = false; },
      [](StepPlan& p) { p.commits = true; },
      [](StepPlan& p) { p.chosen = true; },
      [](StepPlan& p) { p.attention = AttentionForm::kHeads; },
      [](StepPlan& p) { p.sequence_parallel = true; },
      [](StepPlan& p) { p.model.segments[0].name = "zeroth"; },
      [](StepPlan& p) { p.model.segments[0].flops_per_sample = 21; },
      [](StepPlan& p) { p.model.segments[1].borrowed = {0}; },
      [](StepPlan& p) { p.model.segments[0].parameters[0].name = "w"; },
      [](StepPlan& p) { p.model.segments[0].parameters[0].elements = 11; },
      [](StepPlan& p) { p.model.segments[0].parameters[0].dtype = DType::kFloat16; },
      [](StepPlan& p) { p.model.segments[0].parameters[0].trainable = false; },
      [](StepPlan& p) { p.parameters[1] = Placement::kShared; },
      [](StepPlan& p) { p.parameters[1] = Placement::kRemote; },
      [](StepPlan& p) { p.frozen[1] = Placement::kShard; },
      [](StepPlan& p) { p.optimizer_state[1] = Placement::kReplicate; },
      [](StepPlan& p) { p.actions[2].kind = ActionKind::kBackward; },
      [](StepPlan& p) { p.actions[1].range.first = 1; },
      [](StepPlan& p) { p.actions[1].range.last = 0; },
      [](StepPlan& p) { p.actions[2].micro_batch = 0; },
      [](StepPlan& p) { p.actions[1].axes = {"dp"}; },
      [](StepPlan& p) { p.actions[1].asynchronous = false; },
      [](StepPlan& p) { p.actions[3].slot = 0; },
      [](StepPlan& p) { p.actions[3].codec = Codec::kFloat16; },
      [](StepPlan& p) { p.actions[3].algorithm = "ring_all_reduce"; },
  };
  for (std::size_t i = 0; i < changes.size(); ++i) {
    StepPlan other = sample();
    changes[i](other);
    EXPECT_NE(hash(other), hash(sample())) << "change " << i;
  }
}

TEST(ModelShape, NumbersParametersOverAllSegments) {
  const ModelShape model = sample().model;
  EXPECT_EQ(num_parameters(model), 3);
  EXPECT_EQ(num_elements(model), 42);
  EXPECT_EQ(parameters_of(model, {0, 0}), (Range{0, 1}));
  EXPECT_EQ(parameters_of(model, {1, 1}), (Range{2, 2}));
  EXPECT_EQ(parameters_of(model, {0, 1}), (Range{0, 2}));
  EXPECT_EQ(parameters_read(model), (std::vector<std::vector<int>>{{0, 1}, {0, 1, 2}}));
}

}  // namespace
}  // namespace stormo::plan
