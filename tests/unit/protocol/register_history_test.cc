// The checker of histories: it finds an order where there is one, and none where there is none.
#include "tests/register_history.h"

#include <gtest/gtest.h>

namespace stormo::test {
namespace {

using Result = RegisterCall::Result;

/// Changes and reads that end at once.
class HistoryTest : public testing::Test {
 protected:
  void changed(std::uint64_t expected, const std::string& written) {
    h.end(h.change(0, expected, written), Result::kChanged, expected + 1, written);
  }
  void has_read(std::uint64_t version, const std::string& value) {
    h.end(h.read(1), Result::kRead, version, value);
  }
  RegisterHistory h;
};

TEST_F(HistoryTest, OneAfterTheOther) {
  has_read(0, "");
  changed(0, "a");
  has_read(1, "a");
  h.end(h.change(1, 0, "b"), Result::kMismatch, 1, "a");
  changed(1, "c");
  has_read(2, "c");
  EXPECT_EQ(h.check(), "");
}

TEST_F(HistoryTest, AReadDuringAChangeSeesEither) {
  const auto change = h.change(0, 0, "a");
  has_read(0, "");
  has_read(1, "a");
  h.end(change, Result::kChanged, 1, "a");
  EXPECT_EQ(h.check(), "");
}

TEST_F(HistoryTest, ButNotTheOldOneAfterTheNewOne) {
  const auto change = h.change(0, 0, "a");
  has_read(1, "a");
  has_read(0, "");
  h.end(change, Result::kChanged, 1, "a");
  EXPECT_NE(h.check(), "");
}

TEST_F(HistoryTest, AStaleReadIsFound) {
  changed(0, "a");
  changed(1, "b");
  has_read(1, "a");
  const std::string why = h.check();
  EXPECT_NE(why.find("at best 2 of 3"), std::string::npos) << why;
  EXPECT_NE(why.find("client 1, from 5 to 6: read: 1 = a"), std::string::npos) << why;
}

TEST_F(HistoryTest, TwoWinnersAreFound) {
  const auto a = h.change(0, 0, "a"), b = h.change(1, 0, "b");
  h.end(a, Result::kChanged, 1, "a");
  h.end(b, Result::kChanged, 1, "b");
  EXPECT_NE(h.check(), "");
}

TEST_F(HistoryTest, ALoserWhoseChangeIsThereIsFound) {
  h.end(h.change(0, 0, "a"), Result::kMismatch, 1, "a");
  has_read(1, "a");
  EXPECT_NE(h.check(), "");
}

TEST_F(HistoryTest, AMismatchWithoutADifferenceIsFound) {
  changed(0, "a");
  h.end(h.change(1, 1, "b"), Result::kMismatch, 1, "a");
  EXPECT_NE(h.check(), "");
}

TEST_F(HistoryTest, AChangeWithoutAResultMayTakePlaceLater) {
  (void)h.change(2, 0, "a");
  has_read(0, "");
  has_read(1, "a");
  EXPECT_EQ(h.check(), "");
}

TEST_F(HistoryTest, OrNever) {
  (void)h.change(2, 0, "a");
  changed(0, "b");
  has_read(1, "b");
  EXPECT_EQ(h.check(), "");
}

TEST_F(HistoryTest, ButNotBeforeItBegan) {
  has_read(1, "a");
  (void)h.change(2, 0, "a");
  EXPECT_NE(h.check(), "");
}

TEST_F(HistoryTest, NorTwice) {
  (void)h.change(2, 0, "a");
  has_read(1, "a");
  changed(1, "b");
  has_read(2, "b");
  has_read(1, "a");
  EXPECT_NE(h.check(), "");
}

}  // namespace
}  // namespace stormo::test
