// The proof that elastic_model_test would see it: each fault that is built into an elastic job is
// found. A sanitizer has nothing to say about that.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/unit/protocol/elastic_world.h"

namespace stormo::protocol::test {
namespace {

/// What is wrong under the first seed that shows one of these signs.
std::string caught(Bug bug, const std::vector<std::string>& signs, bool averages = false) {
  constexpr std::uint64_t kSeeds = 600;
  for (std::uint64_t seed = 0; seed < kSeeds; ++seed) {
    ElasticWorld world(seed, {.bug = bug, .averages = averages});
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

TEST(ElasticMutation, KeepsHalfAnAverage) {
  EXPECT_NE(caught(Bug::kKeepsHalfAnAverage, {"members go on from different averages"}, true), "");
}
TEST(ElasticMutation, MakesAnAverageOfAnother) {
  EXPECT_NE(caught(Bug::kAveragesAgain, {"members go on from different averages"}, true), "");
}

}  // namespace
}  // namespace stormo::protocol::test
