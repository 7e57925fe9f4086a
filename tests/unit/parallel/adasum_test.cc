// Strategies whose gradients become one by Adasum.
#include <algorithm>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/adasum.h>

namespace stormo::parallel {
namespace {

using testing::HasSubstr;

Result<plan::StepPlan> planned(const Strategy& s, int ranks, StepOptions step = {}) {
  plan::ModelShape model;
  for (const std::string name : {"first", "second"}) {
    model.segments.push_back({.name = name, .parameters = {{name, 40}}, .borrowed = {}});
  }
  step.reduction.all_reduce = plan::kAdasum;
  return plan_for(s, std::move(model), {.ranks_per_host = {ranks}}, step);
}

// Each rank has a copy of the parameters, though those of a host could share one.
TEST(AdasumStrategies, ReplicasCombineGradients) {
  using enum Strategy::Kind;
  const auto reductions = [](const plan::StepPlan& p) {
    return std::ranges::count_if(p.actions, plan::combines_by_adasum);
  };
  for (const Strategy& s : {Strategy{}, {.pipeline = 2}, {.kind = kMirrored}}) {
    const plan::StepPlan p = planned(s, 4, {.micro_batches = s.pipeline}).take_or_throw();
    EXPECT_EQ(reductions(p), s.pipeline) << to_text(p);
    EXPECT_EQ(plan::parse_step_plan(to_text(p)).take_or_throw(), p);
  }
  EXPECT_EQ(reductions(planned({}, 4, {.bucket_bytes = 100}).take_or_throw()), 2);
  EXPECT_EQ(planned({}, 1).take_or_throw().strategy, "one_device");
}

TEST(AdasumStrategies, OthersAreRefused) {
  using enum Strategy::Kind;
  const auto refusal = [](const Strategy& s, const StepOptions& step = {}) {
    return planned(s, 4, step).status().message();
  };
  EXPECT_THAT(refusal({.parameters = Strategy::Parameters::kHostShared}),
              HasSubstr("use 'ddp' with parameters=replicated"));
  EXPECT_THAT(refusal({.kind = kCentralStorage}), HasSubstr("adds up in shared memory"));
  EXPECT_THAT(refusal({.tensor = 2}), HasSubstr("leave out tensor, context and spatial"));
  EXPECT_THAT(refusal({.context = 2}), HasSubstr("takes those of whole replicas"));
  EXPECT_THAT(refusal({.kind = kFsdp}),
              HasSubstr("does not combine whole gradients of replicas by adasum"));
  EXPECT_THAT(refusal({.kind = kGossip}), HasSubstr("leave it out, or use 'ddp'"));
  EXPECT_THAT(refusal({}, {.logical_shards = 4}), HasSubstr("4 logical shards"));
  EXPECT_THAT(refusal({}, {.reduction = {.codec = Codec::kBFloat16}}),
              HasSubstr("as they are, and takes no codec"));
}

}  // namespace
}  // namespace stormo::parallel
