// Averages of members whose states differ, in epochs that end while they are made.
#include <cstdint>
#include <optional>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/protocol/elastic/average_history.h>

namespace stormo::protocol {
namespace {

using Taken = std::vector<std::int64_t>;

TEST(AverageHistory, TheStateAfterAStepIsThatBeforeTheAverageBehindIt) {
  AverageHistory takes, lacks;
  for (AverageHistory* h : {&takes, &lacks}) h->take({.epoch = 1, .step = 8});
  takes.take({.epoch = 1, .step = 16});
  EXPECT_EQ(takes.hash_after(16), lacks.hash_after(16));
  EXPECT_NE(takes.hash_after(17), lacks.hash_after(17));
  EXPECT_NE(takes.hash_after(15), takes.hash_after(16));
  lacks.take({.epoch = 2, .step = 16});  // anew, over other members
  EXPECT_EQ(takes.hash_after(16), lacks.hash_after(16));
  EXPECT_NE(takes.hash_after(17), lacks.hash_after(17));
  lacks.take({.epoch = 1, .step = 16});  // it gets that of the other one
  EXPECT_EQ(takes.hash_after(16), lacks.hash_after(16));
  EXPECT_EQ(takes.hash_after(17), lacks.hash_after(17));
}

TEST(AverageHistory, WhatAMemberSaysNamesTheAverage) {
  AverageHistory h;
  h.take({.epoch = 0, .step = 8});
  EXPECT_EQ(taken_behind(7, h), kHasNotTaken);
  EXPECT_GT(taken_behind(8, h), kHasNotTaken);
  EXPECT_EQ(average_of(taken_behind(8, h), 8), h.last);
}

TEST(Settlement, NobodyHasTakenIt) {
  EXPECT_TRUE(settle(Taken{kHasNotTaken, kHasNoState, kHasNotTaken}).is_made_anew);
}

TEST(Settlement, AllHaveTakenIt) {
  for (const Taken& taken : {Taken{3, 3, 3}, Taken{3, kHasNoState, 3}}) {
    const Settlement found = settle(taken);
    EXPECT_FALSE(found.is_made_anew);
    EXPECT_EQ(found.from, std::nullopt);
  }
}

TEST(Settlement, OthersGetWhatTheFirstOneHas) {
  const auto from = [](const Taken& taken) {
    const Settlement found = settle(taken);
    EXPECT_FALSE(found.is_made_anew);
    return found.from;
  };
  EXPECT_EQ(from({kHasNotTaken, 3, 3}), 1u);
  EXPECT_EQ(from({kHasNoState, 3, kHasNotTaken}), 1u);
  EXPECT_EQ(from({3, 2, 3}), 0u) << "averages of two epochs: one came back at this step";
}

}  // namespace
}  // namespace stormo::protocol
