#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

#include <stormo/parallel/pipeline/pipeline.h>
#include <stormo/parallel/strategy/strategy.h>

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

TEST(Cut, IsTakenAsItIsGiven) {
  plan::ModelShape model;
  for (const char* name : {"a", "b", "c", "d"}) {
    model.segments.push_back({.name = name, .parameters = {{.name = name, .elements = 4}}});
  }
  const auto cut = [&](const Strategy& strategy) {
    return plan_for(strategy, model, {.ranks_per_host = {strategy.pipeline}}, {.micro_batches = 4});
  };
  const auto stages = [](const plan::StepPlan& p) {
    std::vector<int> out;
    for (const plan::SegmentShape& s : p.model.segments) out.push_back(s.stage);
    return out;
  };
  EXPECT_EQ(stages(*cut({.pipeline = 2})), (std::vector{0, 0, 1, 1}));
  EXPECT_EQ(stages(*cut({.pipeline = 2, .cut = {1, 3}})), (std::vector{0, 1, 1, 1}));
  EXPECT_EQ(stages(*cut({.pipeline = 3, .cut = {1, 2, 1}})), (std::vector{0, 1, 1, 2}));
  EXPECT_EQ(
      stages(*cut({.pipeline = 2, .schedule = "interleaved", .chunks = 2, .cut = {1, 1, 1, 1}})),
      (std::vector{0, 1, 0, 1}));
  constexpr std::int64_t kMany = std::numeric_limits<std::int64_t>::max();
  for (const std::vector<std::int64_t>& wrong : std::vector<std::vector<std::int64_t>>{
           {4}, {1, 2}, {1, 1, 2}, {0, 4}, {5, -1}, {kMany, kMany}}) {
    const Status refused = cut({.pipeline = 2, .cut = wrong}).status();
    EXPECT_EQ(refused.code(), Code::kInvalidArgument);
    EXPECT_NE(refused.message().find("has 4 segments for 2 parts"), std::string::npos);
  }
  EXPECT_NE(cut({.cut = {4}}).status().message().find("leave out schedule, chunks, cut "),
            std::string::npos);
}

}  // namespace
}  // namespace stormo::parallel
