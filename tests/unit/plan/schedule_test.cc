#include <stormo/plan/schedule.h>

#include <gtest/gtest.h>

#include <string>

namespace stormo::plan {
namespace {

const Schedule kSmall{"two_step",
                      {GoalKind::kAllReduce},
                      2,
                      3,
                      {{{0, 1, 2, ReceiveOp::kReduce}}, {{1, 0, 2, ReceiveOp::kCopy}}}};

std::string message_of(std::string_view text) { return parse_schedule(text).status().message(); }

TEST(Schedule, ChunksCoverTheBufferEvenly) {
  for (const int chunks : {1, 2, 3, 7, 64}) {
    for (const std::int64_t count : {0, 1, 6, 63, 64, 1000}) {
      std::int64_t end = 0;
      for (ChunkId c = 0; c < chunks; ++c) {
        const Extent e = chunk_extent(c, chunks, count);
        EXPECT_EQ(e.begin, end);
        EXPECT_GE(e.size(), count / chunks);
        EXPECT_LE(e.size(), count / chunks + 1);
        end = e.end;
      }
      EXPECT_EQ(end, count);
    }
  }
}

TEST(Schedule, ConsecutiveChunksHaveConsecutiveOwners) {
  const Schedule s{"", {}, 3, 6, {}};
  const Rank owners[] = {0, 0, 1, 1, 2, 2};
  for (ChunkId c = 0; c < 6; ++c) EXPECT_EQ(owner(s, c), owners[c]);
}

TEST(Schedule, PrintsOneLinePerRound) {
  EXPECT_EQ(to_text(kSmall),
            "schedule v1 two_step all_reduce ranks=2 chunks=3\n"
            "round 0: 0>1 +c2\n"
            "round 1: 1>0 =c2\n");
  const Schedule root{"b", {GoalKind::kBroadcast, 1}, 2, 1, {}};
  EXPECT_EQ(to_text(root), "schedule v1 b broadcast root=1 ranks=2 chunks=1\n");
}

TEST(Schedule, ParsesWhatPeopleWrite) {
  const auto s = parse_schedule(
      "# my idea\n\n  schedule v1 two_step all_reduce   ranks=2 chunks=3 # small\r\n"
      "round 0: 0 > 1 + c2\n\n\tround 1: 1>0=c2");
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  EXPECT_EQ(*s, kSmall);
}

TEST(Schedule, NamesOfAnyKindRoundTrip) {
  for (const std::string& name : {std::string(), std::string("a b"), std::string("q\"\\\n\t\x01#"),
                                  std::string("fl\xc3\xbcgel"), std::string("nul\0nul", 7)}) {
    Schedule s = kSmall;
    s.name = name;
    const auto parsed = parse_schedule(to_text(s));
    ASSERT_TRUE(parsed.ok()) << parsed.status().to_string();
    EXPECT_EQ(*parsed, s);
  }
}

TEST(Schedule, ErrorsNameLineColumnAndReason) {
  const std::string head = "schedule v1 x all_reduce ranks=2 chunks=1\n";
  EXPECT_EQ(message_of(""), "1:1: expected 'schedule v1', found nothing");
  EXPECT_EQ(message_of("schedule v2 x"), "1:10: version 'v2' is unknown; this program reads v1");
  EXPECT_EQ(message_of("schedule v1 x sum ranks=2 chunks=1"),
            "1:15: unknown goal 'sum'; write one of all_reduce, reduce_scatter, all_gather, "
            "broadcast, reduce, gather, scatter, scan, all_to_all");
  EXPECT_EQ(message_of("schedule v1 x broadcast root=2 ranks=2 chunks=1"),
            "1:38: there are fewer ranks than the root needs");
  EXPECT_EQ(message_of("schedule v1 \"x all_reduce"),
            "1:13: the schedule's name lacks its closing quote");
  EXPECT_EQ(message_of("schedule v1 \"\\y\" all_reduce"),
            "1:14: unknown escape; write \\\" \\\\ or \\xHH");
  EXPECT_EQ(message_of(head + "round 0: 0>2 +c0"), "2:12: the receiving rank must be in 0..1");
  EXPECT_EQ(message_of(head + "round 0: 0>1 +c1"), "2:16: the chunk must be in 0..0");
  EXPECT_EQ(message_of(head + "round 0: 0>1 *c0"), "2:14: expected '+' (reduce) or '=' (copy)");
  EXPECT_EQ(message_of(head + "\nround 1:"), "3:7: expected round 0");
  EXPECT_EQ(message_of(head + "round zero:"), "2:7: expected the round's number, a number");
  EXPECT_EQ(message_of(head + "rund 0:"), "2:1: expected 'round'");
  EXPECT_EQ(parse_schedule("x").status().code(), Code::kBadPlan);
}

TEST(Schedule, ParserBoundsEveryNumber) {
  EXPECT_TRUE(parse_schedule("schedule v1 x all_reduce ranks=65536 chunks=65536").ok());
  EXPECT_EQ(message_of("schedule v1 x all_reduce ranks=65537 chunks=1"),
            "1:32: ranks must be in 1..65536");
  EXPECT_EQ(message_of("schedule v1 x all_reduce ranks=0 chunks=1"),
            "1:32: ranks must be in 1..65536");
  EXPECT_EQ(message_of("schedule v1 x all_reduce ranks=1 chunks=99999999999999999999"),
            "1:41: chunks must be in 1..65536");
  EXPECT_EQ(message_of("schedule v1 " + std::string(257, 'x')),
            "1:13: the schedule's name is too long");
  EXPECT_EQ(message_of("schedule v1 \"" + std::string(257, 'x') + "\""),
            "1:13: the schedule's name is too long");
}

TEST(Schedule, HashFollowsEveryField) {
  EXPECT_EQ(hash(kSmall), hash(Schedule(kSmall)));
  std::vector<Schedule> others(8, kSmall);
  others[0].name = "two_steps";
  others[1].goal.kind = GoalKind::kReduceScatter;
  others[2].goal.root = 1;
  others[3].ranks = 3;
  others[4].chunks = 4;
  others[5].rounds.pop_back();
  others[6].rounds[0][0].how = ReceiveOp::kCopy;
  std::swap(others[7].rounds[0], others[7].rounds[1]);
  for (const Schedule& other : others) EXPECT_NE(hash(other), hash(kSmall)) << to_text(other);
}

}  // namespace
}  // namespace stormo::plan
