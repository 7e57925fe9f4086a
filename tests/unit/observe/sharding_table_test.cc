#include <stormo/observe/sharding_table.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <sstream>

#include <stormo/observe/json_lines.h>
#include <stormo/observe/progress.h>

namespace stormo::observe {
namespace {

using testing::HasSubstr;

const ShardingRecord kShards{.sharding = "contiguous",
                             .samples = {20, 19},
                             .counts = {{20, 0}, {5, 14}},
                             .chi_square = {11.2, 11.789},
                             .degrees_of_freedom = 1};

/// Every rank has as many of every class.
ShardingRecord even_shards(std::size_t ranks, std::size_t classes) {
  return {.sharding = "stratified",
          .samples = std::vector(ranks, static_cast<std::int64_t>(2 * classes)),
          .counts = std::vector(ranks, std::vector<std::int64_t>(classes, 2)),
          .chi_square = std::vector<double>(ranks),
          .degrees_of_freedom = static_cast<int>(classes) - 1};
}

TEST(ShardingTable, HasARowForEachRank) {
  EXPECT_EQ(sharding_table(kShards),
            "contiguous: samples of each rank in an epoch, by class\n"
            "  rank  samples       0       1  chi-square (degrees of freedom: 1)\n"
            "     0       20      20       0       11.20\n"
            "     1       19       5      14       11.79\n");
  std::ostringstream out;
  TextObserver(out, {}).on_sharding(kShards);
  EXPECT_EQ(out.str(), sharding_table(kShards));
}

TEST(ShardingTable, SaysHowManyClassesAndRanksItLeavesOut) {
  ShardingRecord many = even_shards(40, 1000);
  many.chi_square[33] = 2.5;
  const std::string table = sharding_table(many);
  EXPECT_EQ(std::ranges::count(table, '\n'), 2 + 16 + 2);
  EXPECT_THAT(table, HasSubstr("     0     2000       2 "));  // all classes are counted
  EXPECT_THAT(table, HasSubstr("and 990 more classes\n"));
  EXPECT_THAT(table, HasSubstr("and 24 more ranks; the largest chi-square is 2.50, of rank 33\n"));
  const auto json = nlohmann::json::parse(sharding_json(many));
  EXPECT_EQ(json["classes"], 1000);
  EXPECT_EQ(json["counts"].size(), 40u);
  EXPECT_EQ(json["counts"][0].size(), 10u);
  EXPECT_EQ(json["chi_square"].size(), 40u);
}

TEST(ShardingTable, IsALineOfJson) {
  std::ostringstream out;
  JsonObserver(out).on_sharding(kShards);
  EXPECT_EQ(
      out.str(),
      R"({"event":"sharding","sharding":"contiguous","samples":[20,19],"classes":2,"counts":[[20,0],[5,14]],)"
      R"("chi_square":[11.2,11.789],"degrees_of_freedom":1})"
      "\n");
}

}  // namespace
}  // namespace stormo::observe
