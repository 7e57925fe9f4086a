// Plans whose gradients travel in a codec that encodes: what is refused, what they send and keep.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include <stormo/analysis/step/step_memory.h>
#include <stormo/analysis/transfer/collectives.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/plan/project.h>

#include "reduced_plan.h"

namespace stormo::analysis {
namespace {

using plan::Action;
using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;

/// One parameter of 1000 numbers on three ranks.
StepPlan replicas(Codec codec) { return reduced_plan(3, {{"a", 1000}}, {.codec = codec}); }

// A part of 334 numbers is two blocks of 260 bytes.
TEST(StepCodecs, ASumOfBlocksIsTwoCollectivesBehindWeightsAndFlags) {
  const std::vector<std::string> encoded = sent(replicas(Codec::kInt8));
  ASSERT_EQ(encoded.size(), 4u);
  EXPECT_EQ(encoded[0], "all_reduce 8");
  EXPECT_EQ(encoded[1], "all_reduce 8");
  EXPECT_EQ(encoded[2], "all_to_all " + std::to_string(3 * 3 * 520));
  EXPECT_EQ(encoded[3], "all_gather " + std::to_string(3 * 520));
  EXPECT_EQ(sent(replicas(Codec::kBFloat16)).back(), "all_reduce " + std::to_string(2 * 1001));
  EXPECT_EQ(sent(replicas(Codec::kNone)).back(), "all_reduce " + std::to_string(4 * 1001));
}

// Of a part of 334 numbers 17 travel: behind the weights and the flags, with their places or added
// up.
TEST(StepCodecs, NumbersThatAreChosenAreFew) {
  const std::vector<std::string> largest = sent(replicas({Codec::kTopK, 0.05}));
  ASSERT_EQ(largest.size(), 4u);
  EXPECT_EQ(largest[2], "all_to_all " + std::to_string(3 * 3 * (17 * 4 + 11 * 4)));
  EXPECT_EQ(largest[3], "all_gather " + std::to_string(3 * (17 * 4 + 11 * 4)));
  const std::vector<std::string> drawn = sent(replicas({Codec::kRandomK, 0.05}));
  ASSERT_EQ(drawn.size(), 3u);
  EXPECT_EQ(drawn[2], "all_reduce " + std::to_string(3 * 17 * 4));
}

/// Matrices of 40 x 25 and 3 x 5 and 24 other numbers.
StepPlan matrices(int rank) {
  StepPlan p = replicas(Codec::powersgd(rank));
  p.model.segments[0].parameters = {{.name = "a", .elements = 1000, .rows = 40},
                                    {"b", 24},
                                    {.name = "c", .elements = 15, .rows = 3}};
  p.actions[4].range = p.actions[5].range = {0, 2};
  return p;
}

TEST(StepCodecs, FactorsAreTwoSumsBehindWeightsAndFlags) {
  const StepPlan p = matrices(3);
  ASSERT_EQ(verify(p).message(), "");
  EXPECT_EQ(sent(p),
            (std::vector<std::string>{"all_reduce 8", "all_reduce 24",
                                      "all_reduce " + std::to_string(4 * (3 * 40 + 24 + 15)),
                                      "all_reduce " + std::to_string(4 * 3 * 25)}));
  // packed gradients, what was lost, a left message and three right ones
  EXPECT_EQ(memory(p, {}).between_steps.gradients, 4 * (1039 + 1039 + (3 * 40 + 39) + 3 * 3 * 25));
}

TEST(StepCodecs, FactorsAreOfMatricesThatGetSmaller) {
  EXPECT_EQ(verify(matrices(7)).message(), "");
  EXPECT_EQ(verify(matrices(8)).message(),
            "action 4 (all_reduce 0-2 over dp codec powersgd:8: a .. c): has codec powersgd:8, but "
            "no gradient is a matrix (rows ...) of more than 2 x 8 x (rows + columns) elements; "
            "take a smaller rank, or another codec");
  EXPECT_NE(verify(matrices(0)).message().find("whose rank must be at least 1"), std::string::npos);
  EXPECT_NE(verify(replicas(Codec::kPowerSgd)).message().find("no gradient is a matrix"),
            std::string::npos);
  StepPlan odd = matrices(3);
  odd.model.segments[0].parameters[0].rows = 33;
  EXPECT_NE(verify(odd).message().find("parameter 'a' does not consist of 33 equal rows"),
            std::string::npos);
}

TEST(StepCodecs, FactorsAreNotOfPartsOfGradients) {
  StepPlan p = matrices(3);
  p.parameters = p.optimizer_state = {Placement::kShard};
  p.actions[4].kind = ActionKind::kReduceScatter;
  EXPECT_NE(verify(p).message().find("has codec powersgd:3, which is of whole matrices, but ranks "
                                     "have parts of gradients"),
            std::string::npos)
      << verify(p).message();
}

TEST(StepCodecs, ADensityIsAShare) {
  for (const double density : {0.0, -0.5, 1.5}) {
    const StepPlan p = replicas({Codec::kTopK, density});
    EXPECT_NE(verify(p).message().find("density must be above 0 and at most 1"), std::string::npos);
  }
  EXPECT_EQ(verify(replicas({Codec::kTopK, 1})).message(), "");
}

// Packed gradients, what was lost of three parts and of a sum, and two codes.
TEST(StepCodecs, ACodecThatEncodesKeepsWhatItLost) {
  const auto kept = [](Codec codec) { return memory(replicas(codec), {}).between_steps.gradients; };
  EXPECT_EQ(kept(Codec::kNone), 0);
  EXPECT_EQ(kept(Codec::kBFloat16), 2 * 1000);
  EXPECT_EQ(kept(Codec::kInt8), 4 * 1000 + 4 * 334 * (3 + 1) + 2 * 3 * 520);
}

TEST(StepCodecs, BucketsThatCutASegmentKeepNoMoreThanOne) {
  StepPlan p = replicas(Codec::kBFloat16);
  p.model.segments[0].parameters = {{"a", 400}, {"b", 600}};
  for (Action& a : p.actions) {
    if (a.kind == ActionKind::kUpdate) a.range = {0, 1};
  }
  p.actions[4].range = {1, 1};
  p.actions.insert(p.actions.begin() + 5, p.actions[4]);
  p.actions[5].range = {0, 0};
  ASSERT_TRUE(verify(p).ok()) << verify(p).to_string();
  EXPECT_EQ(memory(p, {}).between_steps.gradients, 2 * 1000);
}

// Ranks that compute layers together have the same whole parameters beside other slices.
TEST(StepCodecs, SlicesTakeNoCodecThatEncodes) {
  StepPlan p = replicas(Codec::kInt8);
  p.mesh.axes.push_back({plan::kTensorAxis, 2});
  p.parameters.push_back(Placement::kSplit);
  p.optimizer_state.push_back(Placement::kSplit);
  p.frozen.push_back(Placement::kSplit);
  EXPECT_EQ(
      verify(p).message(),
      "action 4 (all_reduce 0-0 over dp codec int8: a): rounds in codec int8 what the ranks of "
      "'tp' have as a whole together with their slices, so that their copies would differ");
  p.actions[4].codec = Codec::kBFloat16;
  EXPECT_EQ(verify(p).message(), "");
}

TEST(StepCodecs, ACodecIsOfRealNumbers) {
  for (const Codec codec : {Codec::kInt8, Codec::kBFloat16}) {
    StepPlan p = replicas(codec);
    p.model.segments[0].parameters[0].dtype = DType::kInt32;
    EXPECT_EQ(verify(p).message(),
              "action 4 (all_reduce 0-0 over dp codec " + to_string(codec) +
                  ": a): rounds in codec " + to_string(codec) +
                  " the gradients of 'a', which are whole numbers (int32); codecs take floating "
                  "types");
    p.model.segments[0].parameters[0].trainable = false;
    p.model.segments[0].parameters.push_back({"b", 10});
    EXPECT_EQ(verify(p).message().find("whole numbers"), std::string::npos);
  }
}

TEST(StepCodecs, ACodecThatEncodesTakesNeitherAnAlgorithmNorAScaleOfTheLoss) {
  StepPlan p = replicas(Codec::kInt8);
  EXPECT_TRUE(verify(p).ok()) << verify(p).to_string();
  p.actions[4].algorithm = "ring_all_reduce";
  EXPECT_EQ(
      verify(p).message(),
      "action 4 (all_reduce 0-0 over dp codec int8 by ring_all_reduce: a): sums in codec int8 "
      "have a schedule of their own, and take no algorithm");
  p = replicas(Codec::kInt8);
  p.scaled_loss = true;
  EXPECT_EQ(
      verify(p).message(),
      "action 4 (all_reduce 0-0 over dp codec int8: a): keeps what codec int8 lost in units of "
      "the scaled loss, and the scale changes from step to step");
}

}  // namespace
}  // namespace stormo::analysis
