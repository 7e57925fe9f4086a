#include <stormo/plan/step_plan.h>

#include <gtest/gtest.h>

#include <functional>
#include <string>

namespace stormo::plan {
namespace {

/// Two segments whose gradients are reduced one by one.
StepPlan sample() {
  return {"sample",
          {{{"dp", 2}}},
          {{{"first", 10, 20}, {"second", 30, 0}}},
          {{ActionKind::kLoad},
           {ActionKind::kForward, 0, 0},
           {ActionKind::kForward, 1, 1},
           {ActionKind::kLoss},
           {ActionKind::kBackward, 1, 1},
           {ActionKind::kAllReduce, 1, 1, "dp"},
           {ActionKind::kBackward, 0, 0},
           {ActionKind::kAllReduce, 0, 0, "dp"},
           {ActionKind::kUpdate, 0, 1}}};
}

TEST(StepPlan, PrintsOneLinePerSegmentAndAction) {
  EXPECT_EQ(to_text(sample()),
            "step_plan v1 sample\n"
            "mesh dp=2\n"
            "segment 0: first parameters=10 flops=20\n"
            "segment 1: second parameters=30 flops=0\n"
            "action 0: load\n"
            "action 1: forward 0-0\n"
            "action 2: forward 1-1\n"
            "action 3: loss\n"
            "action 4: backward 1-1\n"
            "action 5: all_reduce 1-1 over dp\n"
            "action 6: backward 0-0\n"
            "action 7: all_reduce 0-0 over dp\n"
            "action 8: update 0-1\n");
}

TEST(StepPlan, TextRoundTrips) {
  StepPlan odd = sample();
  odd.strategy = "a b";
  odd.model.segments[1].name = "block \"0\"";
  for (const StepPlan& p : {StepPlan{}, sample(), odd}) {
    const auto parsed = parse_step_plan(to_text(p));
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string() << "\n" << to_text(p);
    EXPECT_EQ(*parsed, p);
    EXPECT_EQ(hash(*parsed), hash(p));
  }
}

TEST(StepPlan, ErrorsNameLineColumnAndReason) {
  const auto message_of = [](const std::string& text) {
    return parse_step_plan(text).status().message();
  };
  const std::string head = "step_plan v1 x\nmesh\n";
  EXPECT_EQ(message_of("step_plan v1 x"), "1:15: expected 'mesh', found nothing");
  EXPECT_EQ(message_of(head + "segment 1: a parameters=1 flops=1"), "3:9: expected number 0");
  EXPECT_EQ(message_of(head + "segment 0: a parameters=-1 flops=1"),
            "3:25: parameters must be in 0..9223372036854775807");
  EXPECT_EQ(message_of(head + "action 0: sleep"),
            "3:11: unknown action 'sleep'; write load, forward, loss, backward, all_reduce, "
            "all_gather, reduce_scatter or update");
  EXPECT_EQ(message_of(head + "action 0: update 2-1"),
            "3:20: the last segment must be in 2..65535");
  EXPECT_EQ(message_of(head + "action 0: load 1-1"),
            "3:16: unexpected text before the end of the line");
}

TEST(StepPlan, HashFollowsEveryField) {
  std::vector<StepPlan> others(7, sample());
  others[0].strategy = "other";
  others[1].mesh.axes[0].size = 3;
  others[2].model.segments[0].num_parameters = 11;
  others[3].model.segments[0].flops_per_sample = 21;
  others[4].model.segments[0].name = "zeroth";
  others[5].actions[1].kind = ActionKind::kUpdate;
  others[6].actions[5].axis = "tp";
  for (const StepPlan& other : others) EXPECT_NE(hash(other), hash(sample())) << to_text(other);
}

TEST(Validate, AcceptsTheSample) {
  EXPECT_TRUE(validate(sample()).ok()) << validate(sample()).to_string();
}

TEST(Validate, RefusesEveryBrokenRule) {
  struct Case {
    const char* message;
    std::function<void(StepPlan&)> break_it;
  };
  const auto erase = [](int i) {
    return [i](StepPlan& p) { p.actions.erase(p.actions.begin() + i); };
  };
  const auto swap = [](std::size_t i, std::size_t j) {
    return [i, j](StepPlan& p) { std::swap(p.actions[i], p.actions[j]); };
  };
  const Case cases[] = {
      {"action 0 (forward): comes before the batch is loaded", erase(0)},
      {"action 1 (forward): needs the output of segment 0 first", erase(1)},
      {"action 2 (loss): comes before the forward of segment 1", erase(2)},
      {"action 3 (backward): comes before the loss", erase(3)},
      {"action 4 (all_reduce): finds segment 1 after its forward, before its backward", erase(4)},
      {"action 6 (all_reduce): finds segment 0 after its forward, before its backward", erase(6)},
      {"segment 0 is never updated", erase(8)},
      {"action 4 (backward): needs the gradient of segment 1 first", swap(4, 6)},
      {"action 8 (all_reduce): finds segment 0 after its update", swap(7, 8)},
      {"action 9 (load): loads the batch a second time",
       [](StepPlan& p) { p.actions.push_back({ActionKind::kLoad}); }},
      {"action 9 (loss): computes the loss a second time",
       [](StepPlan& p) { p.actions.push_back({ActionKind::kLoss}); }},
      {"action 9 (update): finds segment 1 after its update",
       [](StepPlan& p) {
         p.actions.push_back({ActionKind::kUpdate, 1, 1});
       }},
      {"action 2 (forward): finds segment 0 after its forward, before its backward",
       [](StepPlan& p) { p.actions[2].first = p.actions[2].last = 0; }},
      {"action 2 (forward): has segments 1-2, but the model has 2",
       [](StepPlan& p) { p.actions[2].last = 2; }},
      {"action 2 (forward): has segments -1-1, but the model has 2",
       [](StepPlan& p) { p.actions[2].first = -1; }},
      {"action 0 (load): takes no segments", [](StepPlan& p) { p.actions[0].last = 1; }},
      {"action 1 (forward): takes no axis", [](StepPlan& p) { p.actions[1].axis = "dp"; }},
      {"action 5 (all_reduce): axis 'tp' is not in the mesh",
       [](StepPlan& p) { p.actions[5].axis = "tp"; }},
      {"mesh: axis 'dp' is there twice",
       [](StepPlan& p) {
         p.mesh.axes.push_back({"dp", 2});
       }},
      {"mesh: axis 'dp' has no ranks", [](StepPlan& p) { p.mesh.axes[0].size = 0; }},
      {"mesh: an axis has no name", [](StepPlan& p) { p.mesh.axes[0].name = ""; }},
      {"mesh: more than 65536 ranks", [](StepPlan& p) { p.mesh.axes[0].size = 65537; }},
      {"the model has no segments", [](StepPlan& p) { p.model.segments.clear(); }},
      {"segment 0 has a negative size",
       [](StepPlan& p) { p.model.segments[0].num_parameters = -1; }},
  };
  for (const Case& c : cases) {
    StepPlan p = sample();
    c.break_it(p);
    const Status st = validate(p);
    EXPECT_EQ(st.code(), Code::kBadPlan);
    EXPECT_EQ(st.message(), c.message);
  }
}

// Two segments that are updated in parts and gathered before forward and backward.
StepPlan in_parts() {
  StepPlan p = sample();
  const auto gather = [](int s) { return Action{ActionKind::kAllGather, s, s, "dp"}; };
  p.actions = {{ActionKind::kLoad},
               gather(0),
               {ActionKind::kForward, 0, 0},
               gather(1),
               {ActionKind::kForward, 1, 1},
               {ActionKind::kLoss},
               gather(1),
               {ActionKind::kBackward, 1, 1},
               {ActionKind::kReduceScatter, 1, 1, "dp"},
               gather(0),
               {ActionKind::kBackward, 0, 0},
               {ActionKind::kReduceScatter, 0, 0, "dp"},
               {ActionKind::kUpdate, 0, 1}};
  return p;
}

TEST(Validate, WhatIsUpdatedInPartsIsGathered) {
  EXPECT_TRUE(validate(in_parts()).ok()) << validate(in_parts()).to_string();
  EXPECT_EQ(*parse_step_plan(to_text(in_parts())), in_parts());
  StepPlan after_update = in_parts();
  std::erase_if(after_update.actions,
                [](const Action& a) { return a.kind == ActionKind::kAllGather; });
  EXPECT_EQ(validate(after_update).message(), "segment 0 is updated in parts and never gathered");
  after_update.actions.push_back({ActionKind::kAllGather, 0, 1, "dp"});
  EXPECT_TRUE(validate(after_update).ok()) << validate(after_update).to_string();

  StepPlan p = in_parts();
  p.actions[3] = p.actions[1];  // segment 1 has no gather but the one before its backward
  EXPECT_EQ(validate(p).message(), "segment 1 is updated in parts and never gathered");
  p = in_parts();
  std::swap(p.actions[7], p.actions[8]);
  EXPECT_EQ(validate(p).message(),
            "action 7 (reduce_scatter): finds segment 1 after its forward, before its backward");
  p = in_parts();
  p.actions[9] = {ActionKind::kReduceScatter, 1, 1, "dp"};
  EXPECT_EQ(validate(p).message(),
            "action 9 (reduce_scatter): finds segment 1 reduced to parts already");
  p = in_parts();
  p.actions[9] = {ActionKind::kAllGather, 1, 1, "dp"};
  EXPECT_EQ(validate(p).message(),
            "action 9 (all_gather): finds segment 1 after its backward, before its update");
  p = in_parts();
  p.actions[1].axis = "tp";
  EXPECT_EQ(validate(p).message(), "action 1 (all_gather): axis 'tp' is not in the mesh");
}

}  // namespace
}  // namespace stormo::plan
