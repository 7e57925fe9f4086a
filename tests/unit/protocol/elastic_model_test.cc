// Elastic training in virtual time: whatever is killed, stopped, cut or flipped, there is one
// lineage with each sample once, and it goes on. Each fault that is built in is found.
#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <vector>

#include "tests/long.h"
#include "tests/unit/protocol/elastic_world.h"

namespace stormo::protocol::test {
namespace {

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
  const std::uint64_t seeds = is_long_form() ? 10'000 : 250;
  const ElasticCounts seen = explore(seeds, {});
  RecordProperty("seen", seen.text());
  if (is_long_form()) std::puts(seen.text().c_str());
  EXPECT_EQ(seen.steps, 1'000 * seeds);
  // all of it happens
  EXPECT_GT(seen.epochs, 4 * seeds);
  EXPECT_GT(seen.healed, 2 * seeds);
  EXPECT_GT(seen.kills, seeds);
  EXPECT_GT(seen.pauses, 5 * seeds);
  EXPECT_GT(seen.cuts, 5 * seeds);
  EXPECT_GT(seen.redone, seeds);
  for (const std::uint64_t few :
       {seen.prepared_bases, seen.freezes, seen.broken, seen.hangs, seen.leaves, seen.flips,
        seen.failed_heals, seen.register_losses, seen.fast_recoveries}) {
    EXPECT_GT(few, seeds / 50) << seen.text();
  }
}

TEST(ElasticModel, AlsoWithSixMembers) { explore(40, {.members = 6}); }
TEST(ElasticModel, AlsoWithTwoMembers) { explore(40, {.members = 2}); }
TEST(ElasticModel, AlsoWithManyThatCome) { explore(40, {.members = 1, .newcomers = 5}); }

/// What is wrong under the first seed that shows one of these signs.
std::string caught(Bug bug, const std::vector<std::string>& signs, std::uint64_t seeds = 600) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    ElasticWorld world(seed, {.bug = bug});
    world.run();
    for (const std::string& sign : signs) {
      if (world.wrong().starts_with(sign)) return world.wrong();
    }
  }
  return "";
}

const std::vector<std::string> kTwoLineages = {"a committed step is lost",
                                               "a step is committed in two ways",
                                               "the base is of another lineage"};

TEST(ElasticMutation, AcceptsAnOldEpoch) {
  EXPECT_NE(caught(Bug::kAcceptsOldEpochs, {"a lost member was seen, and the others wait",
                                            "a member redoes more than one step"}),
            "");
}
TEST(ElasticMutation, PublishesBeforeVisible) {
  EXPECT_NE(caught(Bug::kPublishesBeforeVisible, kTwoLineages), "");
}
TEST(ElasticMutation, CommitsWithoutAgreement) {
  EXPECT_NE(caught(Bug::kCommitsWithoutAgreement, kTwoLineages), "");
}
TEST(ElasticMutation, HealsWithoutAHash) {
  EXPECT_NE(caught(Bug::kHealsWithoutHash, kTwoLineages), "");
}
TEST(ElasticMutation, VotesTwice) { EXPECT_NE(caught(Bug::kVotesTwice, kTwoLineages), ""); }
TEST(ElasticMutation, AddsOneToTheLedger) {
  EXPECT_NE(caught(Bug::kLedgerPlusOne, {"a step has not got each of its samples once"}), "");
}
TEST(ElasticMutation, CountsTheWallClock) {
  EXPECT_NE(caught(Bug::kCountsWallClock, {"a pause below the limit has changed the members"}), "");
}
TEST(ElasticMutation, DoesNotFloodTheAbort) {
  EXPECT_NE(caught(Bug::kDoesNotFloodAbort, {"a lost member was seen, and the others wait"}), "");
}

}  // namespace
}  // namespace stormo::protocol::test
