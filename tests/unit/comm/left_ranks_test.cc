#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/comm/watch/left_ranks.h>

namespace stormo::comm {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

Activities::Call collective(std::uint64_t sequence) {
  return {.size = 3, .operation = {.sequence = sequence, .kind = OperationKind::kAllReduce}};
}
Activities::Call receive(Rank from, std::uint64_t began = 1) {
  return {.group = "messages",
          .size = 3,
          .operation = {.root = from, .kind = OperationKind::kReceive},
          .began = began};
}

TEST(LeftRanks, TheListOfAGroupHasEachOnce) {
  const LeftRank first{.rank = 5, .in_group = 1, .collectives = 7}, second{.rank = 9};
  EXPECT_THAT(parse_left_ranks(to_line(first) + to_line(second) + to_line(first)),
              ElementsAre(first, second));
  EXPECT_THAT(parse_left_ranks(""), IsEmpty());
  EXPECT_EQ(have_left(std::vector<Rank>{5}), "rank 5 has left in order");
  EXPECT_EQ(have_left(std::vector<Rank>{5, 9}), "ranks 5, 9 have left in order");
}

TEST(LeftRanks, OnlyWhoHasNotDoneItsPartIsNeeded) {
  const std::vector<LeftRank> left = {{.rank = 9, .in_group = 2, .collectives = 8},
                                      {.rank = 5, .in_group = 1, .collectives = 7}};
  EXPECT_THAT(needed_of(left, collective(7)), IsEmpty());
  EXPECT_THAT(needed_of(left, collective(8)), ElementsAre(5));
  EXPECT_THAT(needed_of(left, collective(9)), ElementsAre(5, 9));
  EXPECT_THAT(needed_of(left, receive(2)), ElementsAre(9));
  EXPECT_THAT(needed_of(left, receive(5)), IsEmpty()) << "the number in the group counts";
  EXPECT_THAT(needed_of(left, receive(kAnyRank)), ElementsAre(5, 9));
  EXPECT_THAT(needed_of(std::span(left).first(1), receive(kAnyRank)), IsEmpty()) << "rank 5 sends";
}

TEST(RunningCalls, ACollectiveIsStuckAtTheSecondBeat) {
  RunningCalls calls;
  EXPECT_THAT(calls.at_beat({collective(1)}, 0), IsEmpty());
  EXPECT_THAT(calls.at_beat({collective(1)}, 1), ElementsAre(collective(1)));
  EXPECT_THAT(calls.at_beat({collective(2)}, 1), IsEmpty());
}

// What it waits for may be on its way, sent before the other rank left.
TEST(RunningCalls, AMessageIsStuckWhenNothingMoves) {
  RunningCalls calls;
  int beats = 0;
  while (calls.at_beat({receive(1)}, 5).empty()) ++beats;
  EXPECT_EQ(beats, RunningCalls::kQuietBeats);
  EXPECT_THAT(calls.at_beat({receive(1)}, 6), IsEmpty());
  for (int beat = 1; beat < RunningCalls::kQuietBeats; ++beat) {
    EXPECT_THAT(calls.at_beat({receive(1)}, 6), IsEmpty());
  }
  EXPECT_THAT(calls.at_beat({receive(1)}, 6), ElementsAre(receive(1)));
}

TEST(RunningCalls, BytesOfOthersDoNotHideItForEver) {
  RunningCalls calls;
  int beats = 0;
  while (calls.at_beat({receive(1)}, static_cast<std::uint64_t>(beats)).empty()) ++beats;
  EXPECT_EQ(beats, RunningCalls::kMaxBeats);
}

TEST(RunningCalls, EqualMessagesOneAfterTheOtherAreNotOne) {
  RunningCalls calls;
  for (std::uint64_t began = 1; began < 100; ++began) {
    EXPECT_THAT(calls.at_beat({receive(1, began)}, 0), IsEmpty());
  }
}

TEST(KeyOfGroup, IsShortAndItsOwn) {
  EXPECT_EQ(key_of_group("left", "pair"), "left/pair");
  const std::string name(2000, 'x');
  EXPECT_LT(key_of_group("left", name).size(), 400u);
  EXPECT_NE(key_of_group("left", name), key_of_group("left", name + "y"));
}

}  // namespace
}  // namespace stormo::comm
