// A layer `schedule` with what docs/guides/add-a-collective.md adds: its builder file and its row.
// The tests of all builders are linked in and know nothing of it; they find it in the table, and
// its golden file.
#include <gtest/gtest.h>
#include <stormo/analysis/schedule/cost.h>
#include <stormo/schedule/builders.h>

namespace stormo::schedule {
namespace {

TEST(GuideCollective, IsFoundByItsRow) {
  const auto found = find_builder("chain_reduce");
  ASSERT_TRUE(found.ok()) << found.status().to_string();
  const auto s = (*found)->build(5, 1, 0, 4);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  const analysis::Cost c = analysis::cost(*s, /*count=*/1000);
  EXPECT_EQ(c.rounds, 4 + 3);
  EXPECT_EQ(c.max_bytes_sent, 1000);
  EXPECT_EQ(c.total_bytes, 4 * 1000);
}

}  // namespace
}  // namespace stormo::schedule
