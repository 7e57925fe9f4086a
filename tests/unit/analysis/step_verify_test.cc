#include <stormo/analysis/verify/step_verify.h>

#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <string>
#include <utility>

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::Range;
using plan::StepPlan;

/// Two segments of a parameter each; the second reads the first one's too.
plan::ModelShape model() {
  plan::ModelShape m;
  m.segments = {
      {.name = "first", .parameters = {{"a", 10}}, .flops_per_sample = 0, .borrowed = {}},
      {.name = "second", .parameters = {{"b", 30}}, .flops_per_sample = 0, .borrowed = {0}}};
  return m;
}

StepPlan on_axis(Placement parameters, Placement state) {
  StepPlan p;
  p.mesh = {{{"dp", 2}}};
  p.model = model();
  p.parameters = {parameters};
  p.frozen = {Placement::kReplicate};
  p.optimizer_state = {state};
  return p;
}

/// Replicas, a reduction for each piece of the backward, a clipped norm.
StepPlan replicas() {
  StepPlan p = on_axis(Placement::kReplicate, Placement::kReplicate);
  p.clipped = true;
  p.actions = {{.kind = ActionKind::kLoad},                                        // 0
               {.kind = ActionKind::kForward, .range = {0, 1}},                    // 1
               {.kind = ActionKind::kLoss},                                        // 2
               {.kind = ActionKind::kBackward, .range = {1, 1}},                   // 3
               {.kind = ActionKind::kAllReduce, .range = {1, 1}, .axes = {"dp"}},  // 4
               {.kind = ActionKind::kBackward, .range = {0, 0}},                   // 5
               {.kind = ActionKind::kAllReduce, .range = {0, 0}, .axes = {"dp"}},  // 6
               {.kind = ActionKind::kNorm},                                        // 7
               {.kind = ActionKind::kClip},                                        // 8
               {.kind = ActionKind::kUpdate, .range = {0, 1}},                     // 9
               {.kind = ActionKind::kAgree}};                                      // 10
  return p;
}

/// Everything in parts, of one piece.
StepPlan shards() {
  StepPlan p = on_axis(Placement::kShard, Placement::kShard);
  p.actions = {{.kind = ActionKind::kLoad},                                            // 0
               {.kind = ActionKind::kAllGather, .range = {0, 1}, .axes = {"dp"}},      // 1
               {.kind = ActionKind::kForward, .range = {0, 1}},                        // 2
               {.kind = ActionKind::kLoss},                                            // 3
               {.kind = ActionKind::kSumWeights},                                      // 4
               {.kind = ActionKind::kBackward, .range = {0, 1}},                       // 5
               {.kind = ActionKind::kReduceScatter, .range = {0, 1}, .axes = {"dp"}},  // 6
               {.kind = ActionKind::kReleaseGradients, .range = {0, 1}},               // 7
               {.kind = ActionKind::kReshard, .range = {0, 1}, .axes = {"dp"}},        // 8
               {.kind = ActionKind::kFindUnused},                                      // 9
               {.kind = ActionKind::kUpdate, .range = {0, 1}},                         // 10
               {.kind = ActionKind::kAgree}};                                          // 11
  return p;
}

/// One copy in the memory of the ranks, in float16.
StepPlan one_copy() {
  StepPlan p = on_axis(Placement::kShared, Placement::kShard);
  p.scaled_loss = true;
  p.actions = {{.kind = ActionKind::kLoad},                                              // 0
               {.kind = ActionKind::kForward, .range = {0, 1}},                          // 1
               {.kind = ActionKind::kLoss},                                              // 2
               {.kind = ActionKind::kBackward, .range = {0, 1}},                         // 3
               {.kind = ActionKind::kShareGradients, .range = {0, 1}, .axes = {"dp"}},   // 4
               {.kind = ActionKind::kNorm, .axes = {"dp"}},                              // 5
               {.kind = ActionKind::kUnscale},                                           // 6
               {.kind = ActionKind::kUpdate, .range = {0, 1}},                           // 7
               {.kind = ActionKind::kShareParameters, .range = {0, 1}, .axes = {"dp"}},  // 8
               {.kind = ActionKind::kAgree}};                                            // 9
  return p;
}

/// Workers of servers; each segment's gradients are pushed as soon as nothing is added to them.
StepPlan workers() {
  StepPlan p = on_axis(Placement::kRemote, Placement::kRemote);
  p.model.segments.insert(p.model.segments.begin(),
                          {.name = "fixed",
                           .parameters = {{.name = "f", .elements = 5, .trainable = false}},
                           .flops_per_sample = 0,
                           .borrowed = {}});
  p.model.segments[2].borrowed = {1};
  p.actions = {{.kind = ActionKind::kLoad},                                    // 0
               {.kind = ActionKind::kPull, .range = {0, 1}, .axes = {"dp"}},   // 1
               {.kind = ActionKind::kForward, .range = {0, 1}},                // 2
               {.kind = ActionKind::kPull, .range = {2, 2}, .axes = {"dp"}},   // 3
               {.kind = ActionKind::kForward, .range = {2, 2}},                // 4
               {.kind = ActionKind::kLoss},                                    // 5
               {.kind = ActionKind::kBackward, .range = {2, 2}},               // 6
               {.kind = ActionKind::kPush, .range = {2, 2}, .axes = {"dp"}},   // 7
               {.kind = ActionKind::kBackward, .range = {0, 1}},               // 8
               {.kind = ActionKind::kPush, .range = {0, 1}, .axes = {"dp"}}};  // 9
  return p;
}

/// The same, pushed at once, with factors of each worker's own gradient.
StepPlan scaled_workers() {
  StepPlan p = workers();
  p.scaled_loss = p.clipped = true;
  p.actions.erase(p.actions.begin() + 7);
  p.actions.back().range = {0, 2};
  p.actions.insert(p.actions.end() - 1, {{.kind = ActionKind::kNorm},     // 8
                                         {.kind = ActionKind::kUnscale},  // 9
                                         {.kind = ActionKind::kClip}});   // 10
  return p;
}

using Change = std::function<void(StepPlan&)>;
Change without(int i) {
  return [i](StepPlan& p) { p.actions.erase(p.actions.begin() + i); };
}
Change twice(int i) {
  return [i](StepPlan& p) { p.actions.insert(p.actions.begin() + i, p.actions[std::size_t(i)]); };
}
Change swapped(std::size_t i, std::size_t j) {
  return [i, j](StepPlan& p) { std::swap(p.actions[i], p.actions[j]); };
}
Change with(std::size_t i, std::function<void(Action&)> change) {
  return [i, change = std::move(change)](StepPlan& p) { change(p.actions[i]); };
}

struct Case {
  std::string message;
  Change change;
};
void expect_refused(const StepPlan& good, const std::vector<Case>& cases) {
  ASSERT_TRUE(verify(good).ok()) << verify(good).to_string();
  for (const Case& c : cases) {
    StepPlan p = good;
    c.change(p);
    const Status st = verify(p);
    EXPECT_EQ(st.code(), Code::kBadPlan);
    EXPECT_EQ(st.message(), c.message);
  }
}

TEST(StepVerify, NamesWhatAStepOfReplicasLacks) {
  expect_refused(
      replicas(),
      {{"action 0 (forward 0-1: first .. second): comes before the batch is loaded", without(0)},
       {"action 1 (loss): comes before the forward of segment 0", without(1)},
       {"action 2 (backward 1-1: second): comes before the loss", without(2)},
       {"action 3 (all_reduce 1-1 over dp: b): finds no gradients of parameter 1 (b)", without(3)},
       {"action 6 (norm): needs reduced gradients, but the gradients of parameter 1 (b) are "
        "partial "
        "over dp",
        without(4)},
       {"action 7 (clip): comes before the norm", without(7)},
       {"action 9 (agree): parameter 0 (a) is never updated", without(9)},
       {"no action lets the ranks agree on the end of the step", without(10)},
       {"action 1 (load): loads the batch a second time", twice(0)},
       {"action 2 (forward 0-1: first .. second): computes segment 0 a second time", twice(1)},
       {"action 3 (loss): computes the loss a second time", twice(2)},
       {"action 4 (backward 1-1: second): computes segment 1 a second time", twice(3)},
       {"action 5 (all_reduce 1-1 over dp: b): needs terms of a sum, but the gradients of "
        "parameter "
        "1 (b) are replicate over dp",
        twice(4)},
       {"action 8 (norm): computes the norm a second time", twice(7)},
       {"action 9 (clip): clips a second time", twice(8)},
       {"action 10 (update 0-1: a .. b): finds parameter 0 (a) updated already", twice(9)},
       {"action 11 (agree): comes after the ranks have agreed on the end of the step", twice(10)},
       {"action 3 (backward 0-0: first): needs the gradient of segment 1 first", swapped(3, 5)},
       {"action 5 (norm): comes before the backward of micro-batch 0", swapped(5, 7)},
       {"action 8 (update 0-1: a .. b): comes before the gradients are clipped", swapped(8, 9)},
       // the second segment's backward adds to the gradient of a as well
       {"action 5 (backward 0-0: first): adds to gradients that are reduced: the gradients of "
        "parameter 0 (a) are replicate over dp",
        with(4, [](Action& a) { a.range.first = 0; })}});
}

TEST(StepVerify, GradientsThatStayPartialLetReplicasDiverge) {
  StepPlan p = replicas();
  p.actions.erase(p.actions.begin() + 6, p.actions.begin() + 9);
  p.clipped = false;
  EXPECT_EQ(verify(p).message(),
            "at the end the weights of parameter 0 (a) are diverged over dp; the next step needs "
            "replicate");
  p.mesh.axes[0].size = 1;  // a sum of one term
  EXPECT_TRUE(verify(p).ok()) << verify(p).to_string();
}

TEST(StepVerify, NamesWhatAStepOfShardsLacks) {
  const std::string all = "0-1 over dp: a .. b): ";
  expect_refused(
      shards(),
      {{"action 1 (forward 0-1: first .. second): needs the whole, but the weights of parameter 0 "
        "(a) are shard over dp",
        without(1)},
       {"action 5 (reduce_scatter " + all + "comes before the weights are added up", without(4)},
       {"action 6 (release_gradients 0-1: a .. b): finds no terms of a reduce_scatter of parameter "
        "0 (a)",
        without(6)},
       {"action 9 (update 0-1: a .. b): comes before find_unused, and gradients of parameter 0 (a) "
        "are in parts",
        without(9)},
       {"action 2 (all_gather " + all +
            "needs parts, but the weights of parameter 0 (a) are "
            "replicate over dp",
        twice(1)},
       {"action 5 (sum_weights): adds up the weights a second time", twice(4)},
       {"action 8 (release_gradients 0-1: a .. b): finds no terms of a reduce_scatter of parameter "
        "0 (a)",
        twice(7)},
       {"action 9 (reshard " + all +
            "needs the whole, but the weights of parameter 0 (a) are shard "
            "over dp",
        twice(8)},
       {"action 10 (find_unused): looks for unused gradients a second time", twice(9)},
       {"action 6 (backward 0-1: first .. second): needs the whole, but the weights of parameter 0 "
        "(a) are shard over dp",
        [](StepPlan& p) {
          const Action reshard = p.actions[8];
          p.actions.erase(p.actions.begin() + 8);
          p.actions.insert(p.actions.begin() + 5, reshard);
        }}});
  // the update makes parts of what is whole, where the plan drops it nowhere
  StepPlan whole = shards();
  whole.actions.erase(whole.actions.begin() + 8);
  EXPECT_TRUE(verify(whole).ok()) << verify(whole).to_string();
  StepPlan held = shards();
  held.actions.erase(held.actions.begin() + 7);
  EXPECT_EQ(verify(held).message(),
            "at the end the terms of a reduce_scatter of parameter 0 (a) are there still");
}

TEST(StepVerify, WhatIsDroppedInForwardIsDroppedBeforeItsUpdate) {
  StepPlan p = shards();
  const Action gather = p.actions[1], reshard = p.actions[8];
  p.actions.insert(p.actions.begin() + 3, {reshard, gather});  // after forward
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  p.actions.erase(p.actions.begin() + 10);
  EXPECT_EQ(verify(p).message(),
            "action 11 (update 0-1: a .. b): needs parts, but the weights of parameter 0 (a) are "
            "replicate over dp");
}

TEST(StepVerify, NamesWhatARecomputationLacks) {
  StepPlan p = replicas();
  p.actions[1].range = {0, 0};
  p.actions.insert(p.actions.begin() + 2, {.kind = ActionKind::kForward, .range = {1, 1}});
  p.actions.insert(p.actions.begin() + 6, {.kind = ActionKind::kRecompute, .range = {0, 0}});
  const auto again = [](int i) {
    return "action " + std::to_string(i) + " (recompute 0-0: first): ";
  };
  expect_refused(
      p, {{again(7) + "computes its range a third time",
           [](StepPlan& q) {
             q.actions.insert(q.actions.begin() + 6, q.actions[6]);
             q.actions.insert(q.actions.begin() + 8, q.actions[6]);
             q.actions.erase(q.actions.begin() + 8);
           }},
          {"action 6 (backward 0-0: first): comes before its recompute", swapped(6, 7)},
          {again(3) + "comes before the loss",
           [](StepPlan& q) {
             const Action a = q.actions[6];
             q.actions.erase(q.actions.begin() + 6);
             q.actions.insert(q.actions.begin() + 3, a);
           }},
          {"action 4 (recompute 1-1: second): forgets the output of the last segment, which the "
           "loss keeps",
           [](StepPlan& q) {
             q.actions.insert(q.actions.begin() + 4, q.actions[6]);
             q.actions[4].range = {1, 1};
           }}});
  p.actions.erase(p.actions.begin() + 6);
  EXPECT_TRUE(verify(p).ok()) << "another plan, that keeps activations";
  StepPlan in_one = replicas();
  in_one.actions.insert(in_one.actions.begin() + 5,
                        {.kind = ActionKind::kRecompute, .range = {0, 0}});
  EXPECT_EQ(verify(in_one).message(),
            "action 5 (recompute 0-0: first): computes a range again that no forward has computed "
            "as one");
}

TEST(StepVerify, NamesWhatAStepOfOneCopyLacks) {
  const std::string all = "0-1 over dp: a .. b): ";
  expect_refused(
      one_copy(),
      {{"action 4 (norm over dp): needs reduced gradients, but the gradients of parameter 0 (a) "
        "are "
        "partial over dp",
        without(4)},
       {"action 5 (unscale): comes before the norm", without(5)},
       {"action 6 (update 0-1: a .. b): comes before the scale of the loss is undone", without(6)},
       {"at the end the weights of parameter 0 (a) are shard over dp; the next step needs shared",
        without(8)},
       {"action 5 (share_gradients " + all +
            "needs terms that nobody reads yet, but the gradients "
            "of parameter 0 (a) are partial over dp, and read by "
            "others",
        twice(4)},
       {"action 7 (unscale): undoes the scale of the loss a second time", twice(6)},
       {"action 9 (share_parameters " + all +
            "needs updated parts of one copy, but the weights of "
            "parameter 0 (a) are shared over dp",
        twice(8)},
       {"action 5 (norm): leaves out the parts of other ranks of dp",
        with(5, [](Action& a) { a.axes.clear(); })},
       {"action 8 (all_gather " + all +
            "gathers parameter 0 (a), of which there is one copy; "
            "share_parameters does",
        with(8, [](Action& a) { a.kind = ActionKind::kAllGather; })}});
}

TEST(StepVerify, NamesWhatAStepWithServersLacks) {
  expect_refused(
      workers(),
      {{"action 1 (forward 0-1: fixed .. first): needs the whole, but the weights of parameter 1 "
        "(a) are remote over dp",
        without(1)},
       {"action 3 (forward 2-2: second): needs the whole, but the weights of parameter 2 (b) are "
        "remote over dp",
        without(3)},
       {"action 2 (pull 0-1 over dp: f .. a): pulls parameter 1 (a) a second time", twice(1)},
       {"action 7 (pull 2-2 over dp: b): pulls parameter 2 (b) a second time",
        [](StepPlan& p) { p.actions.insert(p.actions.begin() + 7, p.actions[3]); }},
       {"no action pushes the gradients of parameter 2 (b)", without(7)},
       {"no action pushes the gradients of parameter 1 (a)", without(9)},
       {"action 8 (push 2-2 over dp: b): pushes gradients of parameter 2 (b) a second time",
        twice(7)},
       {"action 6 (push 2-2 over dp: b): finds no gradients of parameter 2 (b)", swapped(6, 7)},
       {"action 8 (backward 0-1: fixed .. first): adds to the gradients of parameter 1 (a) after "
        "its push",
        with(7, [](Action& a) { a.range.first = 1; })},
       {"action 9 (pull 0-1 over dp: f .. a): pulls parameter 1 (a) a second time",
        with(9, [](Action& a) { a.kind = ActionKind::kPull; })}});
}

TEST(StepVerify, AFactorOfAWorkersGradientsComesBeforeItsPush) {
  expect_refused(
      scaled_workers(),
      {{"action 8 (unscale): comes before the norm", without(8)},
       {"action 9 (clip): comes before the scale of the loss is undone", without(9)},
       {"action 10 (push 0-2 over dp: f .. b): comes before the gradients are clipped",
        without(10)},
       {"action 10 (push 0-2 over dp: f .. b): comes before the gradients are clipped",
        swapped(10, 11)},
       {"action 12 (clip): comes after a push",
        [](StepPlan& p) { p.actions.push_back(p.actions[10]); }},
       {"action 8 (norm over dp): takes no axis where the parameters are remote over dp: it is the "
        "norm of one worker's own gradient",
        with(8, [](Action& a) { a.axes = {"dp"}; })}});
}

TEST(StepVerify, WorkersDoNotWaitForEachOther) {
  const std::string together =
      "is for values that the ranks hold together, but the parameters are remote over dp; workers "
      "use pull and push";
  const auto instead = [](ActionKind kind, bool over) {
    return with(9, [=](Action& a) {
      a.kind = kind;
      if (!over) a.axes.clear();
      if (row_of(kind).range == plan::RangeOf::kNothing) a.range = {};
    });
  };
  expect_refused(
      workers(),
      {{"action 9 (all_reduce 0-1 over dp: f .. a): " + together,
        instead(ActionKind::kAllReduce, true)},
       {"action 9 (reduce_scatter 0-1 over dp: f .. a): " + together,
        instead(ActionKind::kReduceScatter, true)},
       {"action 9 (all_gather 0-1 over dp: f .. a): " + together,
        instead(ActionKind::kAllGather, true)},
       {"action 9 (sum_weights): " + together, instead(ActionKind::kSumWeights, false)},
       {"action 9 (find_unused): " + together, instead(ActionKind::kFindUnused, false)},
       {"action 9 (update 0-1: f .. a): the parameters are remote over dp; the servers update "
        "them, after a push",
        instead(ActionKind::kUpdate, false)},
       {"action 9 (agree): lets ranks wait for each other, but the parameters are remote over dp, "
        "whose workers do not: loss and stop travel beside the data path",
        instead(ActionKind::kAgree, false)}});
  StepPlan one = workers();
  one.mesh.axes[0].size = 1;
  EXPECT_TRUE(verify(one).ok()) << verify(one).to_string();
  one.actions.erase(one.actions.begin() + 1);
  EXPECT_FALSE(verify(one).ok()) << "a single worker pulls too";
}

TEST(StepVerify, ServersHaveParametersTogetherWithTheirState) {
  expect_refused(
      workers(),
      {{"state optimizer: not remote over dp, where the parameters are; servers keep both",
        [](StepPlan& p) { p.optimizer_state = {Placement::kReplicate}; }},
       {"state parameters: not remote over dp, where the optimizer's state is; servers keep both",
        [](StepPlan& p) { p.parameters = {Placement::kReplicate}; }},
       {"state frozen: remote over dp; servers have only what they update",
        [](StepPlan& p) { p.frozen = {Placement::kRemote}; }},
       {"state parameters: remote over dp, but the mesh has other axes; the workers are its only "
        "one",
        [](StepPlan& p) {
          p.mesh.axes.push_back({"x", 2});
          for (auto* on : {&p.parameters, &p.frozen, &p.optimizer_state}) {
            on->push_back(Placement::kReplicate);
          }
        }},
       {"action 1 (pull 0-1: f .. a): needs an axis", with(1, [](Action& a) { a.axes.clear(); })},
       {"action 0 (load async): cannot be asynchronous",
        with(0, [](Action& a) { a.asynchronous = true; })}});
  StepPlan overlapping = workers();
  for (const std::size_t exchange : {1u, 9u}) overlapping.actions[exchange].asynchronous = true;
  EXPECT_TRUE(verify(overlapping).ok()) << verify(overlapping).to_string();
  StepPlan without_servers = replicas();
  without_servers.actions.insert(without_servers.actions.begin() + 1,
                                 {.kind = ActionKind::kPull, .range = {0, 1}, .axes = {"dp"}});
  EXPECT_EQ(verify(without_servers).message(),
            "action 1 (pull 0-1 over dp: a .. b): needs parameters on servers, but state "
            "parameters is nowhere remote");
}

TEST(StepVerify, NamesWhatIsNoPlanAtAll) {
  expect_refused(
      replicas(),
      {{"action 1 (forward 0-2): has segments 0-2, but the model has 2",
        with(1, [](Action& a) { a.range.last = 2; })},
       {"action 9 (update -1-1): has parameters -1-1, but the model has 2",
        with(9, [](Action& a) { a.range.first = -1; })},
       {"action 0 (load): takes no range", with(0, [](Action& a) { a.range.last = 1; })},
       {"action 1 (forward 0-1 batch 1: first .. second): is of micro-batch 1, but there are 1",
        with(1, [](Action& a) { a.micro_batch = 1; })},
       {"action 1 (forward 0-1 over dp: first .. second): takes no axis",
        with(1, [](Action& a) { a.axes = {"dp"}; })},
       {"action 4 (all_reduce 1-1: b): needs an axis", with(4, [](Action& a) { a.axes.clear(); })},
       {"action 4 (all_reduce 1-1 over tp: b): axis 'tp' is not in the mesh",
        with(4, [](Action& a) { a.axes = {"tp"}; })},
       {"action 4 (all_reduce 1-1 over dp,dp: b): names axis 'dp' twice",
        with(4,
             [](Action& a) {
               a.axes = {"dp", "dp"};
             })},
       {"action 9 (update 0-1 codec bfloat16: a .. b): adds up no gradients, and has neither codec "
        "nor algorithm",
        with(9, [](Action& a) { a.codec = Codec::kBFloat16; })},
       {"action 9 (update 0-1 async: a .. b): cannot be asynchronous",
        with(9, [](Action& a) { a.asynchronous = true; })},
       {"action 8 (unscale): finds no scale of the loss",
        with(8, [](Action& a) { a.kind = ActionKind::kUnscale; })},
       {"mesh: axis 'dp' is there twice",
        [](StepPlan& p) {
          p.mesh.axes.push_back({"dp", 2});
        }},
       {"mesh: axis 'dp' has no ranks", [](StepPlan& p) { p.mesh.axes[0].size = 0; }},
       {"mesh: an axis has no name", [](StepPlan& p) { p.mesh.axes[0].name = ""; }},
       {"mesh: more than 65536 ranks", [](StepPlan& p) { p.mesh.axes[0].size = 65537; }},
       {"the model has no segments", [](StepPlan& p) { p.model.segments.clear(); }},
       {"the model has no parameters",
        [](StepPlan& p) {
          for (plan::SegmentShape& s : p.model.segments) s.parameters.clear();
        }},
       {"segment 0: parameter 'a' has a negative size",
        [](StepPlan& p) { p.model.segments[0].parameters[0].elements = -1; }},
       {"segment 1 borrows parameter 1, which no segment before it has",
        [](StepPlan& p) { p.model.segments[1].borrowed = {1}; }},
       {"state parameters: 0 placements for a mesh of 1 axes",
        [](StepPlan& p) { p.parameters.clear(); }},
       {"state optimizer: partial is nothing to begin a step with",
        [](StepPlan& p) { p.optimizer_state = {Placement::kPartial}; }},
       {"state optimizer: shared over dp; each rank has its own, or a part",
        [](StepPlan& p) { p.optimizer_state = {Placement::kShared}; }},
       {"state parameters: shared over dp, where the optimizer's state is whole: more than one "
        "rank "
        "would update them",
        [](StepPlan& p) { p.parameters = {Placement::kShared}; }},
       {"there are no micro-batches", [](StepPlan& p) { p.micro_batches = 0; }}});
}

TEST(StepVerify, TakesNoLongerForMoreRanks) {
  StepPlan p = shards();
  p.mesh.axes[0].size = 65536;
  p.model.segments.assign(
      96, {.name = "block", .parameters = {{"w", 10}}, .flops_per_sample = 0, .borrowed = {}});
  for (Action& a : p.actions) {
    if (row_of(a.kind).range != plan::RangeOf::kNothing) a.range = {0, 95};
  }
  const auto start = std::chrono::steady_clock::now();
  EXPECT_TRUE(verify(p).ok()) << verify(p).to_string();
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(1));
}

}  // namespace
}  // namespace stormo::analysis
