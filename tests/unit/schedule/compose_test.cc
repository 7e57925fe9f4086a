#include <stormo/schedule/compose.h>

#include <gtest/gtest.h>

#include <array>

namespace stormo::schedule {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;
using plan::Round;
using plan::Schedule;

const Schedule kReduce{
    "reduce", {GoalKind::kReduceScatter}, 2, 2, {{{0, 1, 1, ReceiveOp::kReduce}}}};
const Schedule kCopy{"copy",
                     {GoalKind::kAllGather},
                     2,
                     2,
                     {{{1, 0, 1, ReceiveOp::kCopy}}, {{0, 1, 0, ReceiveOp::kCopy}}}};

TEST(Compose, ThenAppendsTheRounds) {
  const Schedule s = then(kReduce, kCopy);
  EXPECT_EQ(s.name, "reduce");
  ASSERT_EQ(s.rounds.size(), 3u);
  EXPECT_EQ(s.rounds[0], kReduce.rounds[0]);
  EXPECT_EQ(s.rounds[1], kCopy.rounds[0]);
  EXPECT_EQ(s.rounds[2], kCopy.rounds[1]);
}

TEST(Compose, OnGroupRenamesRanksAndWidensChunks) {
  const Schedule s =
      on_group(kReduce, std::array<Rank, 2>{4, 2}, 6, {.offset = 1, .width = 3, .chunks = 8});
  EXPECT_EQ(s.ranks, 6);
  EXPECT_EQ(s.chunks, 8);
  const Round expected{
      {4, 2, 4, ReceiveOp::kReduce}, {4, 2, 5, ReceiveOp::kReduce}, {4, 2, 6, ReceiveOp::kReduce}};
  EXPECT_EQ(s.rounds, std::vector<Round>{expected});
}

TEST(Compose, SideBySideMergesRoundByRound) {
  const Schedule s = side_by_side(std::array{kReduce, kCopy});
  ASSERT_EQ(s.rounds.size(), 2u);
  EXPECT_EQ(s.rounds[0], (Round{kReduce.rounds[0][0], kCopy.rounds[0][0]}));
  EXPECT_EQ(s.rounds[1], kCopy.rounds[1]);
  EXPECT_EQ(side_by_side(std::array{kCopy}), kCopy);
}

TEST(Compose, ReversedTurnsRoundsAndTransfersAround) {
  const Schedule s = reversed(kCopy, ReceiveOp::kReduce);
  EXPECT_EQ(s.rounds,
            (std::vector<Round>{{{1, 0, 0, ReceiveOp::kReduce}}, {{0, 1, 1, ReceiveOp::kReduce}}}));
}

TEST(Compose, InPiecesCutsChunksInPlace) {
  const Schedule s = in_pieces(kReduce, 2);
  EXPECT_EQ(s.chunks, 4);
  EXPECT_EQ(s.rounds,
            (std::vector<Round>{{{0, 1, 2, ReceiveOp::kReduce}, {0, 1, 3, ReceiveOp::kReduce}}}));
  EXPECT_EQ(in_pieces(kReduce, 1), kReduce);
}

TEST(Compose, WithoutRepeatsKeepsTheFirstArrivals) {
  EXPECT_EQ(without_repeats(then(kCopy, kCopy)), kCopy);
  Schedule home = kCopy;  // chunk 0 starts at rank 0
  home.rounds.push_back({{1, 0, 0, ReceiveOp::kCopy}});
  EXPECT_EQ(without_repeats(home), kCopy);
}

TEST(Compose, WithGoalNamesTheWhole) {
  const Schedule s = with_goal(kReduce, "new", {GoalKind::kBroadcast, 1});
  EXPECT_EQ(s.name, "new");
  EXPECT_EQ(s.goal, (plan::Goal{GoalKind::kBroadcast, 1}));
  EXPECT_EQ(s.rounds, kReduce.rounds);
}

TEST(ComposeDeathTest, WrongShapesAreBugs) {
  Schedule three = kCopy;
  three.ranks = 3;
  EXPECT_DEATH((void)then(kReduce, three), "different shape");
  EXPECT_DEATH((void)side_by_side(std::array{kReduce, three}), "different shape");
  EXPECT_DEATH((void)side_by_side({}), "nothing");
  EXPECT_DEATH((void)without_repeats(kReduce), "does not only copy");
  EXPECT_DEATH((void)in_pieces(kReduce, 0), "chunks out of range");
  EXPECT_DEATH((void)without_rounds("x", {GoalKind::kBroadcast, 2}, 2, 1), "root out of range");
  EXPECT_DEATH((void)on_group(kReduce, std::array<Rank, 1>{0}, 2, {0, 1, 2}),
               "one rank per member");
  EXPECT_DEATH((void)on_group(kReduce, std::array<Rank, 2>{0, 2}, 2, {0, 1, 2}), "rank outside");
  EXPECT_DEATH((void)on_group(kReduce, std::array<Rank, 2>{0, 1}, 2, {1, 1, 2}), "do not fit");
}

}  // namespace
}  // namespace stormo::schedule
