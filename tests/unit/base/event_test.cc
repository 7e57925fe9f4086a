#include <gtest/gtest.h>

#include <set>
#include <string_view>

#include <stormo/base/dtype.h>
#include <stormo/base/event.h>

namespace stormo {
namespace {

TEST(Lane, NamesAreDistinct) {
  std::set<std::string_view> names;
  for (int i = 0; i < kNumLanes; ++i) names.insert(to_string(static_cast<Lane>(i)));
  EXPECT_EQ(names.size(), static_cast<std::size_t>(kNumLanes));
  EXPECT_FALSE(names.contains("unknown"));
}

TEST(DType, SizesAreThoseOfTheElementTypes) {
  EXPECT_EQ(size_of(DType::kFloat32), sizeof(float));
  EXPECT_EQ(size_of(DType::kFloat64), sizeof(double));
  EXPECT_EQ(size_of(DType::kBFloat16), 2u);
  EXPECT_EQ(size_of(DType::kInt32), sizeof(std::int32_t));
  EXPECT_EQ(size_of(DType::kInt64), sizeof(std::int64_t));
  EXPECT_EQ(size_of(DType::kUInt8), 1u);
}

TEST(DType, WireValuesStay) {
  EXPECT_EQ(static_cast<int>(DType::kFloat32), 0);
  EXPECT_EQ(static_cast<int>(DType::kFloat64), 1);
  EXPECT_EQ(static_cast<int>(DType::kBFloat16), 2);
  EXPECT_EQ(static_cast<int>(DType::kInt32), 3);
  EXPECT_EQ(static_cast<int>(DType::kInt64), 4);
  EXPECT_EQ(static_cast<int>(DType::kUInt8), 5);
}

TEST(DType, BelongsToItsElementType) {
  EXPECT_EQ(DTypeOf<float>::value, DType::kFloat32);
  EXPECT_EQ(DTypeOf<double>::value, DType::kFloat64);
  EXPECT_EQ(DTypeOf<std::int32_t>::value, DType::kInt32);
  EXPECT_EQ(DTypeOf<std::int64_t>::value, DType::kInt64);
  EXPECT_EQ(DTypeOf<std::uint8_t>::value, DType::kUInt8);
}

}  // namespace
}  // namespace stormo
