#include <gmock/gmock.h>
#include <torch/types.h>

#include <string>

#include <stormo/base/status.h>
#include <stormo/tensor/bridge.h>
#include <stormo/tensor/dtype.h>

namespace stormo::tensor {
namespace {

using ::testing::HasSubstr;

TEST(DType, MapsEveryTypeBothWays) {
  for (const DType t : kDTypes) {
    const auto theirs = scalar_type_of(t);
    EXPECT_EQ(c10::elementSize(theirs), size_of(t)) << to_string(t);
    const auto back = dtype_of(theirs);
    ASSERT_TRUE(back.ok());
    EXPECT_EQ(*back, t);
  }
}

TEST(DType, ListsTheSupportedTypesWhenItRefuses) {
  const auto refused = dtype_of(torch::kComplexFloat);
  ASSERT_FALSE(refused.ok());
  EXPECT_EQ(refused.status().code(), Code::kInvalidArgument);
  EXPECT_THAT(refused.status().message(), HasSubstr("ComplexFloat"));
  EXPECT_THAT(refused.status().message(),
              HasSubstr("float32, float64, bfloat16, int32, int64, uint8"));
}

TEST(BufferOf, DescribesTheTensorWhereItLies) {
  const torch::Tensor whole = torch::arange(24, torch::kFloat64).view({4, 6});
  const comm::Buffer all = buffer_of(whole);
  EXPECT_EQ(all.data, whole.data_ptr());
  EXPECT_EQ(all.count, 24);
  EXPECT_EQ(all.dtype, DType::kFloat64);
  EXPECT_EQ(all.device, comm::Device{});

  const torch::Tensor rows = whole.slice(0, 1, 3);  // an offset view that is contiguous
  EXPECT_EQ(buffer_of(rows).data, whole.data_ptr<double>() + 6);
  EXPECT_EQ(buffer_of(rows).count, 12);
  EXPECT_EQ(buffer_of(torch::empty({0}, torch::kUInt8)).bytes(), 0u);
  EXPECT_EQ(buffer_of(torch::zeros({}, torch::kInt32)).count, 1);
}

std::string refusal_of(const torch::Tensor& tensor) {
  try {
    (void)buffer_of(tensor);
  } catch (const Error& e) {
    EXPECT_EQ(e.status().code(), Code::kInvalidArgument);
    return e.status().message();
  }
  return "accepted";
}

TEST(BufferOf, RefusesWhatRanksCannotExchange) {
  EXPECT_THAT(refusal_of(torch::zeros({3, 4}).t()), HasSubstr(".contiguous()"));
  EXPECT_THAT(refusal_of(torch::zeros({8}).slice(0, 0, 8, 2)), HasSubstr("strides [2]"));
  EXPECT_THAT(refusal_of({}), HasSubstr("undefined"));
  EXPECT_THAT(refusal_of(torch::eye(2).to_sparse()), HasSubstr("to_dense"));
  EXPECT_THAT(refusal_of(torch::zeros({2}, torch::kComplexFloat)), HasSubstr("ComplexFloat"));
  EXPECT_THAT(refusal_of(torch::zeros({2}, torch::kMeta)), HasSubstr("meta"));
}

}  // namespace
}  // namespace stormo::tensor
