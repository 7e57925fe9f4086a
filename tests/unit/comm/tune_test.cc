// Tuning as a whole: every rank comes to the same rules, and they are usable.
#include <stormo/comm/tune.h>

#include <mutex>
#include <set>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

TEST(Tune, EveryRankComesToTheSameRules) {
  for (const std::vector<int>& hosts : {std::vector{3}, std::vector{1, 1}, std::vector{2, 1}}) {
    std::mutex mutex;
    std::set<std::string> outcomes;
    std::size_t reports = 0;
    on_hosts(hosts, [&](Communicator& c) {
      const TuneOptions options{.budget = std::chrono::milliseconds(200), .max_bytes = 64 << 10};
      const auto selection = tune(c, options, [&](const TuneResult& r) {
        const std::lock_guard lock(mutex);
        ++reports;
        EXPECT_GT(r.seconds, 0);
        EXPECT_LE(r.seconds, r.shipped_seconds);
        EXPECT_TRUE(check_choice(r.best, r.goal, hosts).ok());
      });
      ASSERT_TRUE(selection.ok()) << selection.status().to_string();
      const std::lock_guard lock(mutex);
      outcomes.insert(to_text(*selection));
    });
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_EQ(reports, static_cast<std::size_t>(std::accumulate(hosts.begin(), hosts.end(), 0)) *
                           plan::kGoalKinds.size() * 3);
    const Selection selection = parse_selection(*outcomes.begin()).take_or_throw();
    for (const plan::GoalKind goal : plan::kGoalKinds) {
      const auto& rule = selection.rule_for(goal, placement_of(hosts), 3, std::uint64_t{1} << 40);
      EXPECT_EQ(rule.max_bytes, 0u) << "the last rule reaches to the end";
      EXPECT_EQ(rule.goal, goal);
    }
  }
}

}  // namespace
}  // namespace stormo::comm
