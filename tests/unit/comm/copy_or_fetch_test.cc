#include <gtest/gtest.h>

#include <stormo/comm/group/copy_or_fetch.h>

namespace stormo::comm {
namespace {

/// Operations in which the way costs what it says; how many of them copied.
int copies_among(CopyOrFetch& trial, int operations, double cost_of_copies,
                 double cost_of_fetches) {
  int copies = 0;
  for (int i = 0; i < operations; ++i) {
    copies += trial.copies() ? 1 : 0;
    trial.record_time(trial.copies() ? cost_of_copies : cost_of_fetches, trial.proposes_copies());
  }
  return copies;
}

TEST(CopyOrFetch, TriesBothInTurnsAndKeepsTheFaster) {
  CopyOrFetch copying;
  EXPECT_EQ(copies_among(copying, 8, 1, 2), 4);
  EXPECT_GE(copies_among(copying, 1000, 1, 2), 990);
  CopyOrFetch fetching;
  EXPECT_EQ(copies_among(fetching, 8, 2, 1), 4);
  EXPECT_LE(copies_among(fetching, 1000, 2, 1), 10);
}

TEST(CopyOrFetch, FollowsWhenTheOtherBecomesTheFaster) {
  CopyOrFetch trial;
  copies_among(trial, 1000, 1, 2);
  copies_among(trial, 1000, 4, 2);
  EXPECT_LE(copies_among(trial, 1000, 4, 2), 10);
}

TEST(CopyOrFetch, AnInterruptionDecidesNothing) {
  CopyOrFetch trial;
  copies_among(trial, 100, 1, 2);
  trial.record_time(1000, trial.proposes_copies());
  EXPECT_TRUE(trial.copies());
  trial.record_time(1, trial.proposes_copies());
  EXPECT_TRUE(trial.copies());
}

TEST(CopyOrFetch, DoesWhatWasAgreedAndNotWhatItProposed) {
  CopyOrFetch trial;
  copies_among(trial, 100, 1, 2);
  EXPECT_TRUE(trial.proposes_copies());
  trial.record_time(1, false);
  EXPECT_FALSE(trial.copies());
}

}  // namespace
}  // namespace stormo::comm
