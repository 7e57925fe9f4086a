// The rows of strategies, and the table of the documents that lists them.
#include <stormo/parallel/strategy/strategy_table.h>

#include <fstream>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/built.h"

namespace stormo::parallel {
namespace {

using ::testing::ElementsAre;

TEST(StrategyTable, HasARowForEachKindInTheirOrder) {
  for (std::size_t i = 0; i < strategy_rows().size(); ++i) {
    EXPECT_EQ(strategy_rows()[i].kind, static_cast<Strategy::Kind>(i));
  }
  EXPECT_EQ(row_of(Strategy::Kind::kAuto).name, "auto");
  EXPECT_EQ(row_of(Strategy::Kind::kAuto).distribute, nullptr);
}

TEST(StrategyTable, KeysAreWholeWords) {
  EXPECT_THAT(strategies_with("stage"), ElementsAre("fsdp"));
  EXPECT_THAT(strategies_with("servers"), ElementsAre("parameter_server", "elastic_averaging"));
  EXPECT_THAT(strategies_with("server"), ElementsAre());
  EXPECT_THAT(strategies_with(""), ElementsAre());
}

/// The first two cells of the table of strategies.
std::vector<std::string> documented() {
  std::ifstream file(testing::repository() / "docs/recipes.md");
  std::vector<std::string> out;
  bool in_table = false;
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with("| `strategy.kind` | Ranks |")) {
      in_table = true;
    } else if (in_table && line.starts_with("| `")) {
      out.push_back(line.substr(0, line.find(" |", line.find(" | ") + 1)));
    } else if (in_table && !line.starts_with("|-")) {
      break;
    }
  }
  return out;
}

TEST(StrategyTable, IsTheDocumentedOne) {
  std::vector<std::string> rows;
  for (const StrategyRow& row : strategy_rows()) {
    rows.push_back("| `" + std::string(row.name) + "` | " + std::string(row.ranks));
  }
  EXPECT_EQ(documented(), rows);
}

}  // namespace
}  // namespace stormo::parallel
