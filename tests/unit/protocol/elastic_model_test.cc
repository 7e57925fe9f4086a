// Elastic training in virtual time: whatever is killed, stopped, cut or flipped, there is one
// lineage with each sample once, and it goes on.
#include <gtest/gtest.h>

#include <cstdio>

#include "tests/long.h"
#include "tests/sanitized.h"
#include "tests/unit/protocol/elastic_world.h"

namespace stormo::protocol::test {
namespace {

/// A sanitizer sees in tens of worlds what the code does in hundreds.
constexpr std::uint64_t kSeeds = kSanitized ? 25 : 250;
constexpr std::uint64_t kSeedsOfOtherSizes = kSanitized ? 4 : 40;

ElasticCounts explore(std::uint64_t seeds, const ElasticWorldOptions& options) {
  ElasticCounts counts;
  for (std::uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    ElasticWorld world(seed, options);
    world.run();
    EXPECT_EQ(world.wrong(), "") << "seed " << seed;
    counts.add(world.counts());
  }
  return counts;
}

TEST(ElasticModel, WhateverFailsThereIsOneLineageAndItGoesOn) {
  const std::uint64_t seeds = is_long_form() ? 10'000 : kSeeds;
  const ElasticCounts seen = explore(seeds, {});
  RecordProperty("seen", seen.text());
  if (is_long_form()) std::puts(seen.text().c_str());
  EXPECT_EQ(seen.steps + seen.left, 1'000 * seeds);
  // all of it happens
  EXPECT_GT(seen.epochs, 4 * seeds);
  EXPECT_GT(seen.healed, 2 * seeds);
  EXPECT_GT(seen.kills, seeds);
  EXPECT_GT(seen.pauses, 5 * seeds);
  EXPECT_GT(seen.cuts, 5 * seeds);
  EXPECT_GT(seen.redone, seeds);
  for (const std::uint64_t few :
       {seen.prepared_bases, seen.freezes, seen.broken, seen.hangs, seen.gave_up, seen.leaves,
        seen.flips, seen.failed_heals, seen.register_losses, seen.fast_recoveries,
        seen.prepared_groups}) {
    EXPECT_GT(few, seeds / 50) << seen.text();
  }
}

TEST(ElasticModel, AlsoWithSixMembers) { explore(kSeedsOfOtherSizes, {.members = 6}); }
TEST(ElasticModel, AlsoWithTwoMembers) { explore(kSeedsOfOtherSizes, {.members = 2}); }
TEST(ElasticModel, AlsoWithPartsOfTheModel) {
  const ElasticCounts seen = explore(kSeedsOfOtherSizes, {.parts = 2});
  EXPECT_GT(seen.healed, kSeedsOfOtherSizes) << seen.text();
  explore(kSeedsOfOtherSizes, {.members = 6, .newcomers = 3, .parts = 3});
}
TEST(ElasticModel, AlsoWithStatesThatDifferBetweenAverages) {
  const std::uint64_t seeds = is_long_form() ? 10'000 : kSeedsOfOtherSizes;
  const ElasticCounts seen = explore(seeds, {.averages = true});
  RecordProperty("seen", seen.text());
  EXPECT_EQ(seen.steps + seen.left, 1'000 * seeds);
  EXPECT_GT(seen.healed, 2 * seeds) << seen.text();
  EXPECT_GT(seen.averages, 500 * seeds) << seen.text();
  if (kSanitized) return;  // what is rare need not happen in a few seeds
  EXPECT_GT(seen.given_averages, seeds / 50) << seen.text();
  EXPECT_GT(seen.made_anew, seeds / 50) << seen.text();
}
TEST(ElasticModel, AlsoWithManyThatCome) {
  explore(kSeedsOfOtherSizes, {.members = 1, .newcomers = 5});
}

}  // namespace
}  // namespace stormo::protocol::test
