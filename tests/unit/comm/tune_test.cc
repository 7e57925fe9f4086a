// Tuning as a whole: every rank comes to the same rules, and they are usable.
#include <stormo/comm/tune/regret.h>
#include <stormo/comm/tune/tune.h>

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
      const auto selection = tune(dynamic_cast<Group&>(c), options, [&](const TuneResult& r) {
        const std::lock_guard lock(mutex);
        ++reports;
        EXPECT_GT(r.seconds, 0);
        EXPECT_LE(r.seconds, r.default_seconds);
        EXPECT_TRUE(check_choice(r.best, r.goal, hosts).ok());
      });
      ASSERT_TRUE(selection.ok()) << selection.status().to_string();
      const std::lock_guard lock(mutex);
      outcomes.insert(to_text(*selection));
    });
    ASSERT_EQ(outcomes.size(), 1u);
    // inside of one host there is nothing to choose for a scan
    const std::size_t goals = plan::kGoalKinds.size() - (hosts.size() == 1 ? 1 : 0);
    EXPECT_EQ(reports,
              static_cast<std::size_t>(std::accumulate(hosts.begin(), hosts.end(), 0)) * goals * 3);
    const Selection selection = parse_selection(*outcomes.begin()).take_or_throw();
    for (const plan::GoalKind goal : plan::kGoalKinds) {
      const auto& rule = selection.rule_for(goal, host_layout_of(hosts), 3, std::uint64_t{1} << 40);
      EXPECT_EQ(rule.max_bytes, 0u) << "the last rule reaches to the end";
      EXPECT_EQ(rule.goal, goal);
    }
  }
}

TEST(Selection, RulesForOneHostHoldForACrowdedOneUnlessItHasItsOwn) {
  const Selection mine = parse_selection(
                             "selection v1\n"
                             "all_reduce crowded_host ranks=3 bytes=0 star_all_reduce pieces=1\n"
                             "all_reduce one_host ranks=0 bytes=0 ring_all_reduce pieces=1\n")
                             .take_or_throw();
  const auto name = [&](HostLayout layout, int ranks) {
    return mine.choose(plan::GoalKind::kAllReduce, layout, ranks, 100).builder->name;
  };
  EXPECT_EQ(name(HostLayout::kCrowdedHost, 3), "star_all_reduce");
  EXPECT_EQ(name(HostLayout::kCrowdedHost, 4), "ring_all_reduce");
  EXPECT_EQ(name(HostLayout::kOneHost, 3), "ring_all_reduce");
  EXPECT_EQ(host_layout_of({3}, true), HostLayout::kCrowdedHost);
  EXPECT_EQ(host_layout_of({3}), HostLayout::kOneHost);
  EXPECT_EQ(host_layout_of({1, 1}, true), HostLayout::kOnePerHost);
}

/// B7, in small: bench/regret measures whether the default selection is good.
TEST(Regret, ComparesTheSelectionWithTheBestOnEveryRankAlike) {
  for (const std::vector<int>& hosts : {std::vector{3}, std::vector{1, 1}}) {
    std::mutex mutex;
    std::set<std::pair<std::uint64_t, double>> ratios;
    on_hosts(hosts, [&](Communicator& c) {
      const RegretOptions options{.sizes = {1 << 10, 64 << 10}, .seconds = 0};
      auto& group = dynamic_cast<Group&>(c);
      const auto found = measure_regret(group, options, {});
      ASSERT_TRUE(found.ok()) << found.status().to_string();
      ASSERT_EQ(found->size(), 2u);
      EXPECT_EQ(found->front().selected.has_value(), hosts.size() > 1)
          << "1 KiB among the ranks of one host is posted whole";
      for (const Regret& r : *found) {
        if (r.selected) {
          EXPECT_EQ(*r.selected,
                    Selection::defaults().choose(plan::GoalKind::kAllReduce, group.host_layout(),
                                                 c.size(), r.bytes));
        }
        EXPECT_GE(r.ratio(), 1);
        EXPECT_EQ(r.ratio() == 1, r.best == r.selected);
        const std::lock_guard lock(mutex);
        ratios.emplace(r.bytes, r.ratio());
      }
    });
    EXPECT_EQ(ratios.size(), 2u) << "all ranks found the same";
  }
}

}  // namespace
}  // namespace stormo::comm
