#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/protocol/stall.h>

#include <optional>

namespace stormo::protocol {
namespace {

using namespace std::chrono_literals;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr Duration kNever = Duration::max();

TEST(StallBounds, AreTheDefaultsForFastSteps) {
  const StallBounds b = stall_bounds({}, true, 100ms);
  EXPECT_EQ(b.warn_after, 10s);
  EXPECT_EQ(b.end_after, 60100ms);
}

TEST(StallBounds, GrowWithSlowSteps) {
  const StallBounds b = stall_bounds({}, true, 20s);
  EXPECT_EQ(b.warn_after, 100s);
  EXPECT_EQ(b.end_after, 100s) << "not before the warning";
}

TEST(StallBounds, AreFiveTimesAsLongBeforeTheFirstStepIsOver) {
  const StallBounds b = stall_bounds({}, false, 0s);
  EXPECT_EQ(b.warn_after, 50s);
  EXPECT_EQ(b.end_after, 300s);
}

TEST(StallBounds, ZeroIsNever) {
  EXPECT_EQ(stall_bounds({0s, 60s}, true, 1s).warn_after, kNever);
  EXPECT_EQ(stall_bounds({0s, 60s}, true, 1s).end_after, 61s);
  EXPECT_EQ(stall_bounds({10s, 0s}, false, 1s).end_after, kNever);
}

RankReport rank(Rank r, std::uint64_t place, bool running, Duration idle) {
  RankReport report{.rank = r,
                    .identity = "rank " + std::to_string(r) + " (host a, pid 7)",
                    .answered = true,
                    .doing = "step 12 forward",
                    .idle = idle};
  report.groups = {{.rank = r, .place = place, .operation = "all_reduce #40", .running = running}};
  return report;
}

StallWait wait_in(const RankReport& report, Duration waited) {
  return {report.groups.front(), waited};
}

TEST(FindStall, NamesWhoIsMissingAndWhoWaits) {
  const std::vector ranks = {rank(0, 40, true, 11s), rank(1, 39, false, 30s),
                             rank(2, 40, true, 10s)};
  const Stall stall = find_stall(wait_in(ranks[0], 11s), ranks);
  EXPECT_THAT(stall.missing, ElementsAre(1));
  EXPECT_THAT(stall.waiting, ElementsAre(0, 2));
  EXPECT_EQ(stall.age, 11s);
  EXPECT_EQ(stall.text,
            "rank 1 (host a, pid 7) has not reached all_reduce #40 for 11 s; ranks 0, 2 wait in "
            "it; rank 1's last: step 12 forward");
}

TEST(FindStall, IsYoungWhenTheMissingOneGetsOn) {
  const std::vector ranks = {rank(0, 40, true, 90s), rank(1, 39, false, 2s)};
  EXPECT_EQ(find_stall(wait_in(ranks[0], 90s), ranks).age, 2s);
}

TEST(FindStall, BlamesWhoWaitsForNobody) {
  // rank 1 comes late because it waits for rank 2 in another group
  std::vector ranks = {rank(0, 40, true, 50s), rank(1, 39, false, 40s), rank(2, 39, false, 60s)};
  ranks[1].groups.push_back(
      {.group = "pair", .place = 3, .operation = "barrier #3", .running = true});
  EXPECT_THAT(find_stall(wait_in(ranks[0], 50s), ranks).missing, ElementsAre(2));
  ranks.pop_back();
  EXPECT_THAT(find_stall(wait_in(ranks[0], 50s), ranks).missing, ElementsAre(1));
}

// It is stuck in a call in which it waits for nobody. Who waits for it says so.
TEST(FindStall, WhoHoldsUpOthersDoesNotSayThatNobodyIsMissing) {
  std::vector ranks = {rank(0, 41, true, 50s), rank(1, 40, true, 60s)};
  EXPECT_EQ(find_stall(wait_in(ranks[1], 60s), ranks).age, 0s);
  const Stall stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(stall.missing, ElementsAre(1));
  EXPECT_EQ(stall.age, 50s);
  ranks[0] = rank(0, 41, false, 50s);
  EXPECT_EQ(find_stall(wait_in(ranks[1], 60s), ranks).age, 60s) << "nobody waits";
  ranks[0].groups.push_back(
      {.group = "pair", .place = 3, .operation = "barrier #3", .running = true});
  EXPECT_EQ(find_stall(wait_in(ranks[1], 60s), ranks).age, 0s) << "in another group";
}

TEST(FindStall, LeavesOutWhoIsNotInTheGroup) {
  std::vector ranks = {rank(0, 40, true, 50s), rank(1, 39, false, 50s), rank(2, 0, false, 99s)};
  ranks[2].groups.front().group = "another";
  EXPECT_THAT(find_stall(wait_in(ranks[0], 50s), ranks).missing, ElementsAre(1));
}

TEST(FindStall, KnowsThePeerOfAMessage) {
  std::vector ranks = {rank(0, 40, false, 50s), rank(1, 39, false, 50s), rank(2, 39, false, 70s)};
  GroupReport& receive = ranks[0].groups.front();
  receive.running = receive.is_message = true;
  receive.peer = 2;
  EXPECT_THAT(find_stall(wait_in(ranks[0], 50s), ranks).missing, ElementsAre(2));
  GroupReport& send = ranks[2].groups.front();
  send.running = send.is_message = true;
  send.peer = 0;
  const Stall facing = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(facing.missing, IsEmpty());
  EXPECT_THAT(facing.waiting, ElementsAre(0, 2));
}

RankReport of_messages(Rank r, Duration idle, std::optional<Rank> peer = {}) {
  RankReport report = rank(r, 0, peer.has_value(), idle);
  report.groups.front().is_message = peer.has_value();
  report.groups.front().peer = peer.value_or(0);
  report.groups.front().operation = peer ? "recv from " + std::to_string(*peer) : "nothing yet";
  return report;
}

// Every group tells of its messages from its beginning, so a rank that never sent one is known.
TEST(FindStall, NamesWhoNeverSentAMessage) {
  const std::vector ranks = {of_messages(0, 50s, 2), of_messages(1, 50s), of_messages(2, 70s)};
  const Stall stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(stall.missing, ElementsAre(2));
  EXPECT_EQ(stall.age, 50s);
}

// It is in the message that its peer cannot answer before it gets another one.
TEST(FindStall, FollowsAPeerThatWaitsForAThirdRank) {
  const std::vector ranks = {of_messages(0, 50s, 1), of_messages(1, 50s, 2), of_messages(2, 70s)};
  EXPECT_THAT(find_stall(wait_in(ranks[0], 50s), ranks).missing, ElementsAre(1));
  EXPECT_THAT(find_stall(wait_in(ranks[1], 50s), ranks).missing, ElementsAre(2));
}

TEST(FindStall, OfAReceiveFromAnyEveryOneThatIsInNoMessageIsMissing) {
  std::vector ranks = {of_messages(0, 50s, kAnyPeer), of_messages(1, 60s), of_messages(2, 70s),
                       of_messages(3, 60s, 2)};
  Stall stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(stall.missing, ElementsAre(1, 2));
  EXPECT_THAT(stall.waiting, ElementsAre(0));
  EXPECT_EQ(stall.age, 50s);
  ranks[1].idle = 2s;  // it may be the one that sends
  EXPECT_EQ(find_stall(wait_in(ranks[0], 50s), ranks).age, 2s);
  ranks = {of_messages(0, 50s, kAnyPeer), of_messages(1, 60s, 0)};
  stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(stall.missing, IsEmpty());
  EXPECT_THAT(stall.waiting, ElementsAre(0, 1));
}

TEST(FindStall, ASilentRankOfAnotherGroupEndsNoWait) {
  std::vector ranks = {rank(0, 40, true, 50s), rank(1, 39, false, 1s), rank(2, 0, false, 0s)};
  ranks[2].answered = false;
  ranks[2].groups.clear();
  EXPECT_THAT(find_stall(wait_in(ranks[0], 50s), ranks).silent, ElementsAre(2));
  ranks[0].groups.front().size = 2;  // ranks 0 and 1, which answer
  const Stall stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(stall.silent, IsEmpty());
  EXPECT_EQ(stall.age, 1s) << "rank 1 gets on";
}

TEST(FindStall, SaysWhatIsSeenOfASilentRank) {
  std::vector ranks = {rank(0, 40, true, 50s), rank(1, 40, true, 50s)};
  ranks[1].answered = false;
  ranks[1].seen = "its process is stopped";
  const Stall stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_THAT(stall.silent, ElementsAre(1));
  EXPECT_EQ(stall.text,
            "rank 1 (host a, pid 7) does not answer, and all_reduce #40 has not ended for 50 s; "
            "rank 0 waits in it; rank 1: its process is stopped");
}

TEST(FindStall, WithoutAMissingRankIsAsOldAsTheLastToGetOn) {
  const std::vector ranks = {rank(0, 40, true, 50s), rank(1, 40, true, 3s)};
  const Stall stall = find_stall(wait_in(ranks[0], 50s), ranks);
  EXPECT_EQ(stall.age, 3s);
  EXPECT_THAT(stall.text, HasSubstr("nobody is missing: ranks 0, 1 are in it"));
}

}  // namespace
}  // namespace stormo::protocol
