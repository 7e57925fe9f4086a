#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <limits>
#include <sstream>

#include <stormo/observe/csv_log.h>

namespace stormo::observe {
namespace {

TEST(CsvLog, EachRowHasAFieldForEachColumn) {
  std::ostringstream out;
  CsvLog log(out, /*heads=*/true);
  log.on_start({});
  log.on_step({.step = 2, .epoch = 0.5, .loss = 1.25, .share = {0.5, 0.25, 0, 0.25}, .slowest = 1});
  log.on_step({.step = 3, .loss = std::numeric_limits<double>::quiet_NaN()});
  log.on_eval({.split = "validation", .step = 3, .loss = 2, .accuracy = 0.5});
  log.on_eval({.split = "test", .step = 3, .loss = 4});
  std::istringstream lines(out.str());
  std::vector<std::string> rows;
  for (std::string line; std::getline(lines, line);) rows.push_back(line);
  ASSERT_EQ(rows.size(), 5u);
  for (const std::string& row : rows) EXPECT_EQ(std::ranges::count(row, ','), 14) << row;
  EXPECT_THAT(rows[0], testing::StartsWith("step,epoch,loss,"));
  EXPECT_THAT(rows[1], testing::StartsWith("2,0.5,1.25,0,0,0.5,0.25,0,0.25,1,0."));
  EXPECT_THAT(rows[2], testing::StartsWith("3,0,,0,"));
  EXPECT_THAT(rows[3],
              testing::AllOf(testing::StartsWith("3,,,,,,,,,,0."), testing::EndsWith(",2,0.5,,")));
  EXPECT_THAT(rows[4], testing::EndsWith(",,,4,"));
}

TEST(CsvLog, ATableThatGoesOnHasItsHeadAlready) {
  std::ostringstream out;
  CsvLog log(out, /*heads=*/false);
  log.on_step({.step = 7});
  EXPECT_THAT(out.str(), testing::StartsWith("7,"));
}

}  // namespace
}  // namespace stormo::observe
