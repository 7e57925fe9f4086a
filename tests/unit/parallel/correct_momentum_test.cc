// Plans whose ranks encode the momentum of their gradients.
#include <stormo/parallel/computation/correct_momentum.h>

#include <algorithm>
#include <string>
#include <utility>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/momentum.h>

namespace stormo::parallel {
namespace {

using testing::HasSubstr;

constexpr codec::MomentumCorrection kMomentum{.momentum = 0.9},
    kClips{.momentum = 0.9, .clip_norm = 2};
constexpr std::int64_t kElements = 80;

struct Job {
  Strategy strategy = {};
  std::vector<int> hosts = {1, 1};
  StepOptions step = {};
  Codec codec = {Codec::kTopK, 0.1};
  bool sparse = false;

  plan::StepPlan plain() const {
    plan::ModelShape model;
    for (const std::string name : {"first", "second"}) {
      model.segments.push_back(
          {.name = name,
           .parameters = {{.name = name, .elements = kElements / 2, .sparse = sparse}},
           .borrowed = {}});
    }
    StepOptions options = step;
    options.reduction.codec = codec;
    return plan_for(strategy, std::move(model), {.ranks_per_host = hosts}, options).take_or_throw();
  }
  Result<plan::StepPlan> corrected(const codec::MomentumCorrection& how = kMomentum) const {
    return compose(plain(), correct_momentum(how));
  }
  std::string refusal(const codec::MomentumCorrection& how = kMomentum) const {
    return corrected(how).status().message();
  }
};

const Strategy kReplicated{.parameters = Strategy::Parameters::kReplicated};

// Copies of the ranks, also in buckets, and one for each host.
TEST(CorrectMomentum, StandsInEachReductionAndSendsAsMuch) {
  for (const Job& job :
       {Job{}, Job{.strategy = kReplicated, .hosts = {3}}, Job{.step = {.bucket_bytes = 100}},
        Job{.hosts = {2, 2}}, Job{.codec = {Codec::kRandomK, 0.1}}}) {
    const plan::StepPlan plain = job.plain(), p = job.corrected().take_or_throw();
    EXPECT_EQ(plan::parse_step_plan(to_text(p)).take_or_throw(), p);
    EXPECT_THAT(to_text(p), HasSubstr(" by momentum_0.9 "));
    ASSERT_EQ(p.actions.size(), plain.actions.size());
    for (std::size_t i = 0; i < p.actions.size(); ++i) {
      EXPECT_EQ(plan::momentum_of(p.actions[i]).has_value(), p.actions[i].codec != Codec::kNone);
      EXPECT_EQ(analysis::collectives_of(p, i, {}), analysis::collectives_of(plain, i, {}));
    }
  }
}

TEST(CorrectMomentum, TakesTheMemoryOfAMomentum) {
  const auto bytes = [](const plan::StepPlan& p) {
    return analysis::memory(p, {}).between_steps.total();
  };
  for (const int ranks : {2, 4, 5}) {
    const Job job{.strategy = kReplicated, .hosts = {ranks}};
    EXPECT_EQ(bytes(job.corrected().take_or_throw()), bytes(job.plain()) + 4 * kElements);
  }
}

// There the optimizer has the momentum, and averages are clipped.
TEST(CorrectMomentum, ChangesNothingWhereNoFewNumbersTravel) {
  for (const Job& job : {Job{.hosts = {2}}, Job{.hosts = {1}}, Job{.codec = Codec::kInt8},
                         Job{.codec = Codec::kNone}}) {
    Job clips = job;
    clips.step.clip = true;
    EXPECT_EQ(job.corrected().take_or_throw(), job.plain());
    EXPECT_EQ(clips.corrected(kClips).take_or_throw(), clips.plain());
  }
}

TEST(CorrectMomentum, RanksClipInPlaceOfTheAverage) {
  const Job job{.step = {.clip = true}};
  const plan::StepPlan p = job.corrected(kClips).take_or_throw();
  EXPECT_TRUE(job.plain().clipped);
  EXPECT_FALSE(p.clipped);
  EXPECT_THAT(to_text(p), HasSubstr(" by momentum_0.9_clip_2 "));
  EXPECT_THAT(to_text(p), testing::Not(HasSubstr("\nnorm")));
  EXPECT_THAT(
      (Job{.step = {.clip = true, .bucket_bytes = 100}}.refusal(kClips)),
      HasSubstr("whose norm is of the whole gradient, which ranks then send in one message"));
}

TEST(CorrectMomentum, OtherPlansAreRefused) {
  using enum Strategy::Kind;
  EXPECT_THAT((Job{.strategy = {.kind = kFsdp}}.refusal()),
              HasSubstr("has momentum_0.9, which is for gradients of whole replicas"));
  EXPECT_THAT(
      (Job{.strategy = {.pipeline = 2}, .hosts = {2, 2}, .step = {.micro_batches = 2}}.refusal()),
      HasSubstr("which is for gradients of whole replicas"));
  EXPECT_THAT((Job{.strategy = kReplicated, .sparse = true}.refusal()),
              HasSubstr("which is for dense gradients, and that of 'first' is sparse"));
  for (const double momentum : {0.0, 1.0, -0.5}) {
    EXPECT_THAT(Job().refusal({.momentum = momentum}),
                HasSubstr("whose momentum must be above 0 and below 1"));
  }
  plan::StepPlan other = Job().corrected().take_or_throw();
  for (plan::Action& a : other.actions) a.codec = a.codec == Codec::kNone ? a.codec : Codec::kInt8;
  EXPECT_THAT(compose(other, std::vector<Pass>()).status().message(),
              HasSubstr("which is for codecs that send few numbers, such as top_k"));
}

}  // namespace
}  // namespace stormo::parallel
