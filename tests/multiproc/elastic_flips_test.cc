// Wrong bits in an elastic job: they are found in the step in which they appear, and never used. So
// the weights are those of a job without them, to the bit; with logical shards of one process.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>

#include "elastic_job_of_points.h"

namespace stormo::testing {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

const std::string& right_weights() {
  static const std::string weights = weights_of(job(1, "nowhere"));
  return weights;
}

TEST(WrongBits, OfAWeightAreThoseOfTheMajorityAgain) {
  const Outcome o = job(3, "flip-weight");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "replica_mismatch in step 71: rank 1 (host "), 1) << o.out;
  EXPECT_EQ(count(o.out, "mismatch"), 1) << o.out;
  EXPECT_THAT(o.err, Not(HasSubstr("the job goes on without it")));
  EXPECT_EQ(weights_of(o), right_weights()) << o.err;
}

TEST(WrongBits, OfAnAveragedGradientAreNotApplied) {
  const Outcome o = job(3, "flip-gradient");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "gradient_mismatch in step 71: step 71 is done again: "), 1) << o.out;
  EXPECT_THAT(o.out, HasSubstr("/1 had other averaged gradients than most"));
  EXPECT_EQ(count(o.out, "mismatch"), 1) << o.out;
  EXPECT_EQ(weights_of(o), right_weights()) << o.err;
}

TEST(WrongBits, WhoHasThemAgainAndAgainLeavesTheJob) {
  const Outcome o = job(3, "flip-weight-again");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "replica_mismatch in step "), 3) << o.out;
  EXPECT_EQ(count(o.out, "replica_mismatch in step 91: "), 1) << o.out;
  EXPECT_THAT(o.err, HasSubstr("/1: asks to leave: it had wrong bits 3 times within 1000 steps"));
  EXPECT_EQ(count(o.err, "has left; the job goes on without it"), 1) << o.err;
  EXPECT_THAT(o.err, Not(HasSubstr("is started again"))) << o.err;
  EXPECT_EQ(weights_of(o), right_weights()) << o.err;
}

TEST(WrongBits, WhoseGradientsAreAlwaysWrongIsReplaced) {
  const Outcome o = job(3, "flip-gradient-always");
  EXPECT_EQ(o.status, 0) << o.err;
  EXPECT_EQ(count(o.out, "gradient_mismatch in step 71: "), 3) << o.out;
  EXPECT_THAT(o.err, HasSubstr("/1: ends: it had wrong bits 3 times within 1000 steps"));
  EXPECT_EQ(count(o.err, "is started again"), 1) << o.err;
  EXPECT_EQ(weights_of(o), right_weights()) << o.err;
}

// Local rank 1 has the second stage, as two others.
TEST(WrongBits, InAPipelineAreFoundAmongRanksOfAStage) {
  const std::string right = weights_of(job(6, "nowhere", "pipelines"));
  const Outcome weight = job(6, "flip-weight", "pipelines");
  EXPECT_EQ(weight.status, 0) << weight.err;
  EXPECT_EQ(count(weight.out, "replica_mismatch in step 71: rank 1 (host "), 1) << weight.out;
  EXPECT_EQ(weights_of(weight), right) << weight.err;
  const Outcome gradient = job(6, "flip-gradient", "pipelines");
  EXPECT_EQ(gradient.status, 0) << gradient.err;
  EXPECT_THAT(gradient.out, HasSubstr("gradient_mismatch in step 71: step 71 is done again: "));
  EXPECT_THAT(gradient.out, HasSubstr("/1 had other averaged gradients than most"));
  EXPECT_EQ(weights_of(gradient), right) << gradient.err;
  for (const Outcome& o : {weight, gradient}) EXPECT_EQ(count(o.out, "mismatch"), 1) << o.out;
}

// Which of two is right nobody knows.
TEST(WrongBits, OfOneOfTwoEndTheJob) {
  const Outcome o = job(2, "flip-weight");
  EXPECT_EQ(o.status, 75);
  EXPECT_THAT(o.err, HasSubstr("no majority says which of them are right")) << o.err;
  EXPECT_THAT(o.out, Not(HasSubstr("weights"))) << o.out;
}

}  // namespace
}  // namespace stormo::testing
