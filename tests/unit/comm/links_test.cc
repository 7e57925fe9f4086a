// Links as all_reduces show them.
#include <stormo/comm/tune/links.h>

#include <chrono>
#include <mutex>
#include <set>

#include <stormo/comm/selection/collective_model.h>

#include "tests/unit/comm/ranks.h"

namespace stormo::comm {
namespace {

constexpr std::int64_t kBrief = 1 << 10, kLengthy = 4 << 20;

/// What an all_reduce takes on these links.
TimedReduction timed(const plan::Topology& links, std::int64_t bytes) {
  CollectiveModel model(links, Selection::defaults());
  const Duration time = model
                            .time(links.host_sizes, {.goal = plan::GoalKind::kAllReduce,
                                                     .elements = bytes / 4,
                                                     .dtype = DType::kFloat32,
                                                     .axes = {}})
                            .take_or_throw();
  return {bytes, std::chrono::duration<double>(time).count()};
}

TEST(FittedLinks, AreThoseThatTookSoLong) {
  const plan::Link links[] = {{.latency_s = 2e-5, .seconds_per_byte = 8.4e-9},  // 1 Gbit/s
                              {.latency_s = 3e-4, .seconds_per_byte = 8.4e-8},  // 100 Mbit/s
                              {.latency_s = 2e-2, .seconds_per_byte = 2e-7},    // far away
                              {.latency_s = 4e-6, .seconds_per_byte = 1e-10}};  // fast
  for (const std::vector<int>& hosts : {std::vector{1, 1}, std::vector{2, 2}, std::vector{3, 2, 1},
                                        std::vector{4}, std::vector(9, 1)}) {
    for (const plan::Link& link : links) {
      plan::Topology real = plan::Topology::gigabit(hosts);
      (hosts.size() > 1 ? real.inter : real.intra) = link;
      if (hosts.size() == 1) real.reduce_seconds_per_byte = 0;
      const plan::Topology found = fitted(plan::Topology::gigabit(hosts), Selection::defaults(),
                                          timed(real, kBrief), timed(real, kLengthy))
                                       .take_or_throw();
      const plan::Link& of = hosts.size() > 1 ? found.inter : found.intra;
      EXPECT_NEAR(of.latency_s, link.latency_s, 0.05 * link.latency_s) << to_text(real);
      EXPECT_NEAR(of.seconds_per_byte, link.seconds_per_byte, 0.02 * link.seconds_per_byte)
          << to_text(real);
    }
  }
}

TEST(FittedLinks, LeavesOtherLinksAsTheyAre) {
  const plan::Topology before = plan::Topology::gigabit({2, 2});
  const plan::Topology found =
      fitted(before, Selection::defaults(), {kBrief, 1e-3}, {kLengthy, 1}).take_or_throw();
  EXPECT_EQ(found.intra, before.intra);
  EXPECT_EQ(found.host_sizes, before.host_sizes);
  EXPECT_GT(found.inter.latency_s, before.inter.latency_s);
  EXPECT_GT(found.inter.seconds_per_byte, before.inter.seconds_per_byte);
}

// Other processes had the core: the latency stays as it was assumed.
TEST(FittedLinks, DoNotBelieveAShortMessageThatTakesLongerThanALongOne) {
  for (const std::vector<int>& hosts : {std::vector{1, 1}, std::vector{3}}) {
    const plan::Topology before = plan::Topology::gigabit(hosts);
    const plan::Topology found =
        fitted(before, Selection::defaults(), {kBrief, 20e-3}, {kLengthy, 8e-3}).take_or_throw();
    EXPECT_EQ(found.inter.latency_s, before.inter.latency_s);
    EXPECT_EQ(found.intra.latency_s, before.intra.latency_s);
    EXPECT_NEAR(timed(found, kLengthy).seconds, 8e-3, 1e-4);
  }
}

TEST(FittedLinks, HaveLimitsWhereNothingFits) {
  const plan::Topology found =
      fitted(plan::Topology::gigabit({1, 1}), Selection::defaults(), {kBrief, 0}, {kLengthy, 0})
          .take_or_throw();
  EXPECT_GT(found.inter.latency_s, 0);
  EXPECT_GT(found.inter.seconds_per_byte, 0);
  EXPECT_LT(found.inter.seconds_per_byte, 1e-12);
}

TEST(MeasuredLinks, AreAlikeOnAllRanks) {
  for (const std::vector<int>& hosts : {std::vector{1, 1}, std::vector{2, 1}, std::vector{3}}) {
    std::mutex mutex;
    std::set<std::string> outcomes;
    on_hosts(hosts, [&](Communicator& c) {
      const plan::Topology found = measure_links(dynamic_cast<Group&>(c)).take_or_throw();
      EXPECT_EQ(found.host_sizes, hosts);
      const std::lock_guard lock(mutex);
      outcomes.insert(to_text(found));
    });
    ASSERT_EQ(outcomes.size(), 1u);
    EXPECT_NE(*outcomes.begin(), to_text(plan::Topology::gigabit(hosts))) << "it was measured";
  }
}

TEST(MeasuredLinks, OfOneRankAreAssumed) {
  on_hosts({1}, [](Communicator& c) {
    EXPECT_EQ(measure_links(dynamic_cast<Group&>(c)).take_or_throw(), plan::Topology::gigabit({1}));
  });
}

}  // namespace
}  // namespace stormo::comm
