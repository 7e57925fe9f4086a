// Plans whose gradients become one by Adasum: what is refused, what they send and keep.
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

using plan::ActionKind;
using plan::Placement;
using plan::StepPlan;

/// Two parameters, of 1000 numbers and of 39, on so many ranks.
StepPlan replicas(int ranks) {
  return reduced_plan(ranks, {{"a", 1000}, {"b", 39}}, {.algorithm = "adasum"});
}

// Flags of two parameters, parts of 208 numbers to their owners, on three levels two pairs, one and
// one with three products for each parameter, and parts to all.
TEST(StepAdasum, PartsGoToTheirOwnersAndBackAndProductsBetweenThem) {
  const StepPlan p = replicas(5);
  ASSERT_EQ(verify(p).message(), "");
  EXPECT_EQ(sent(p),
            (std::vector<std::string>{
                "all_reduce 16", "all_to_all " + std::to_string(4 * 5 * 5 * 208), "all_reduce 96",
                "all_reduce 48", "all_reduce 48", "all_gather " + std::to_string(4 * 5 * 208)}));
  EXPECT_TRUE(sent(replicas(1)).empty());
}

// Packed gradients, parts of all and of all ranks, and the products of the first level.
TEST(StepAdasum, KeepsBuffersAndNothingFromStepToStep) {
  EXPECT_EQ(memory(replicas(5), {}).between_steps.gradients, 4 * 1039 + 2 * 4 * 5 * 208 + 96);
  EXPECT_FALSE(keeps_residuals(replicas(5)));
}

TEST(StepAdasum, GradientsOf16BitsAreCombinedInFloat32) {
  StepPlan p = replicas(2);
  for (plan::ParameterShape& shape : p.model.segments[0].parameters) {
    shape.dtype = DType::kBFloat16;
  }
  ASSERT_EQ(verify(p).message(), "");
  EXPECT_EQ(sent(p).at(1), "all_to_all " + std::to_string(4 * 2 * 2 * 520));
}

std::string refusal(const StepPlan& p) {
  const std::string message = verify(p).message();
  const std::size_t begin = message.find("): ");
  return begin == std::string::npos ? message : message.substr(begin + 3);
}

TEST(StepAdasum, IsOfWholeReplicas) {
  const std::string wanted =
      "combines by adasum gradients of whole replicas, over the one axis that is not 'pp'";
  StepPlan slices = replicas(2);
  slices.mesh.axes.push_back({plan::kTensorAxis, 2});
  for (auto* state : {&slices.parameters, &slices.optimizer_state, &slices.frozen}) {
    state->push_back(Placement::kSplit);
  }
  EXPECT_EQ(refusal(slices), wanted);
  StepPlan positions = replicas(2);
  positions.mesh.axes.push_back({plan::kContextAxis, 2});
  for (auto* state : {&positions.parameters, &positions.optimizer_state, &positions.frozen}) {
    state->push_back(Placement::kReplicate);
  }
  positions.model.segments[0].positions = 4;
  positions.actions[4].axes = {"dp", plan::kContextAxis};
  EXPECT_EQ(refusal(positions), wanted);
  StepPlan shared = replicas(2);
  shared.parameters = {Placement::kShared};
  shared.optimizer_state = {Placement::kShard};
  EXPECT_EQ(refusal(shared), wanted);
  StepPlan parts = shared;
  parts.parameters = {Placement::kShard};
  parts.actions[4].kind = ActionKind::kReduceScatter;
  EXPECT_EQ(refusal(parts), wanted);
}

TEST(StepAdasum, IsOfDenseFloat32WithoutACodec) {
  StepPlan coded = replicas(2);
  coded.actions[4].codec = Codec::kBFloat16;
  EXPECT_EQ(refusal(coded), "combines gradients by adasum as they are, and takes no codec");
  StepPlan wide = replicas(2);
  wide.model.segments[0].parameters[1].dtype = DType::kFloat64;
  EXPECT_EQ(refusal(wide),
            "combines by adasum gradients of float32 or 16 bits, and that of 'b' is of float64; "
            "take float32 parameters, or add gradients up");
  wide.model.segments[0].parameters[1].trainable = false;
  wide.actions[5].range = {0, 0};
  EXPECT_EQ(refusal(wide).find("combines"), std::string::npos);
  StepPlan sparse = replicas(2);
  sparse.model.segments[0].parameters[0].sparse = true;
  EXPECT_EQ(refusal(sparse), "combines by adasum dense gradients, and that of 'a' is sparse");
}

}  // namespace
}  // namespace stormo::analysis
