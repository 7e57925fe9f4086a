// What a layout has no place for: check_layout() names the action.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include <stormo/analysis/verify/step_verify.h>
#include <stormo/parallel/one_device.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/train/parameters/model_parameters.h>
#include <stormo/train/step/layout.h>
#include <stormo/train/store/replicated_store.h>

#include "tests/unit/train/store_places.h"

namespace stormo::train {
namespace {

using plan::StepPlan;
using test::Hosts;
using test::Layout;
using test::layouts;
using test::Place;
using test::PlanRank;
using test::PlanRun;
using test::run_of;

/// What check_layout() says to the plan of the passes, after `change`.
std::string refusal(const Place& place, const std::function<void(StepPlan&)>& change) {
  const PlanRun run = run_of(place);
  StepPlan changed = run.plan;
  change(changed);
  const Status sound = analysis::verify(changed);
  if (!sound.ok()) return "does not verify: " + sound.message();
  std::string why;
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const Status status = rank.start(changed);
    EXPECT_EQ(status.ok() ? Code::kBadPlan : status.code(), Code::kBadPlan);
    if (rank.rank() == 0) why = status.message();
  });
  return why;
}

Place place_of(const std::string& name, const Hosts& hosts) {
  const std::vector<Layout> all = layouts();
  return {*std::ranges::find(all, name, &Layout::name), hosts};
}

plan::Action& first(StepPlan& p, plan::ActionKind kind) {
  return *std::ranges::find(p.actions, kind, &plan::Action::kind);
}

void split_update(StepPlan& p) {
  const auto update = std::ranges::find(p.actions, plan::ActionKind::kUpdate, &plan::Action::kind);
  plan::Action part = *update;
  part.range.last = 1;
  update->range.first = 2;
  p.actions.insert(update, part);
}

TEST(StoreRefusals, NameTheActionThatItCannotDo) {
  EXPECT_THAT(refusal(place_of("sharded3", {1}), split_update),
              ::testing::HasSubstr(" (update 0-1: layer0.linear.weight .. layer0.linear.bias): "
                                   "shards are updated all at once"));
  EXPECT_EQ(refusal(place_of("host_shared", {1}), split_update),
            "action 5 (update 0-1: layer0.linear.weight .. layer0.linear.bias): one copy per host "
            "is updated as a whole");
  EXPECT_EQ(refusal(place_of("replicated", {1}),
                    [](StepPlan& p) { first(p, plan::ActionKind::kAllReduce).range.last = 1; }),
            "replicas average each gradient once; the plan reduces 2 of 4");
}

// A single rank has nobody to share with, so that verify() misses nothing.
TEST(StoreRefusals, OneCopyPerHostNeedsItsBarriers) {
  for (const auto kind : {plan::ActionKind::kShareGradients, plan::ActionKind::kShareParameters}) {
    EXPECT_EQ(
        refusal(place_of("host_shared", {1}),
                [kind](StepPlan& p) {
                  std::erase_if(p.actions, [kind](const auto& a) { return a.kind == kind; });
                }),
        "one copy per host takes share_gradients of every gradient once, and share_parameters");
  }
}

TEST(StoreRefusals, OneCopyPerHostIsNoReplica) {
  EXPECT_EQ(refusal(place_of("host_shared", {2, 2}),
                    [](StepPlan& p) {
                      p.parameters = p.optimizer_state = {plan::Placement::kReplicate,
                                                          plan::Placement::kReplicate};
                      std::erase_if(p.actions, [](const auto& a) {
                        return a.kind == plan::ActionKind::kShareParameters;
                      });
                    }),
            "there is one copy per host: state parameters shared over host");
}

// make_store() says for which ranks a store is.
TEST(StoreRefusals, AStoreThatWasMadeForNothingIsOfOneRank) {
  const PlanRun run = run_of(place_of("replicated", {2}));
  test::on_plan_ranks(run, [&](PlanRank& rank) {
    const ReplicatedStore store(
        rank.groups, make_optimizer(run.options.optimizer, trainable_parameters(*rank.chain)));
    EXPECT_TRUE(check_layout(parallel::one_device(run.plan.model), store).ok());
    const StepPlan served = parallel::plan_for({.kind = Strategy::Kind::kParameterServer},
                                               run.plan.model, {.ranks_per_host = {1}}, {})
                                .take_or_throw();
    for (const StepPlan& plan : {run.plan, served}) {
      EXPECT_EQ(check_layout(plan, store).message(),
                "the store was made for one rank without servers; use make_store()");
    }
  });
}

}  // namespace
}  // namespace stormo::train
