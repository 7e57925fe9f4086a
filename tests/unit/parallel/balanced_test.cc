#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include <stormo/parallel/pipeline.h>

namespace stormo::parallel {
namespace {

TEST(Balanced, CutsSoThatTheLargestPartIsAsSmallAsPossible) {
  using plan::Range;
  EXPECT_EQ(*balanced({1, 1, 1, 1}, 2), (std::vector<Range>{{0, 1}, {2, 3}}));
  EXPECT_EQ(*balanced({1, 1, 1, 9}, 2), (std::vector<Range>{{0, 2}, {3, 3}}));
  EXPECT_EQ(*balanced({5, 1, 1, 1, 5}, 3), (std::vector<Range>{{0, 0}, {1, 3}, {4, 4}}));
  EXPECT_EQ(*balanced({0, 0, 0}, 3), (std::vector<Range>{{0, 0}, {1, 1}, {2, 2}}));
  EXPECT_EQ(*balanced({2, 2, 2, 1}, 3), (std::vector<Range>{{0, 0}, {1, 1}, {2, 3}}));
  // of many segments, too, at once
  const auto many = balanced(std::vector<double>(60000, 1), 30000).take_or_throw();
  EXPECT_TRUE(std::ranges::all_of(many, [](const Range& r) { return r.size() == 2; }));
  const Status few = balanced({1, 1}, 3).status();
  EXPECT_EQ(few.code(), Code::kInvalidArgument);
  EXPECT_NE(few.message().find("has 2 segments, too few for 3 parts"), std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
