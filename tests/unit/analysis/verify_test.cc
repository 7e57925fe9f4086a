#include <stormo/analysis/schedule/verify.h>

#include <gtest/gtest.h>
#include <stormo/schedule/builders.h>

#include <string>
#include <vector>

#include "tests/sanitized.h"

namespace stormo::analysis {
namespace {

using plan::GoalKind;
using plan::ReceiveOp;
using plan::Schedule;

void expect_verified(const schedule::Builder& b, int ranks, int hosts, Rank root) {
  const auto s = b.build(ranks, hosts, root, 1 + ranks % 3);
  ASSERT_TRUE(s.ok()) << s.status().to_string();
  const Status st = verify(*s);
  EXPECT_TRUE(st.ok()) << b.name << " ranks=" << ranks << " hosts=" << hosts << " root=" << root
                       << ": " << st.to_string();
}

TEST(Verify, AcceptsEveryBuilderForEverySize) {
  constexpr int kLargest = kSanitized ? 13 : 33;
  std::vector<int> sizes{64};
  if (!kSanitized) sizes.push_back(100);
  for (int n = 1; n <= kLargest; ++n) sizes.push_back(n);
  int verified = 0;
  for (const schedule::Builder& b : schedule::builders()) {
    for (const int ranks : sizes) {
      for (int hosts = 1; hosts <= (b.takes.hosts ? ranks : 1); ++hosts) {
        if (ranks % hosts != 0 && (b.takes.even_hosts || hosts > 3)) continue;
        for (Rank root = 0; root < (b.takes.root ? ranks : 1); ++root, ++verified) {
          expect_verified(b, ranks, hosts, root);
        }
      }
    }
  }
  EXPECT_GT(verified, 25 * static_cast<int>(sizes.size()) + 11 * kLargest * (kLargest + 1) / 2);
}

/// Reduce to rank 0, then copy back: valid, and the base of the cases below.
const std::string kHead = "schedule v1 x all_reduce ranks=3 chunks=1\n";

std::string message_of(const std::string& text) {
  const auto s = plan::parse_schedule(text);
  EXPECT_TRUE(s.ok()) << s.status().to_string();
  const Status st = verify(*s);
  EXPECT_EQ(st.code(), st.ok() ? Code::kOk : Code::kBadPlan);
  return st.message();
}

TEST(Verify, SaysWhatIsWrongAndWhere) {
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 +c0 2>0 +c0\nround 1: 0>1 =c0 0>2 =c0"), "");
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 +c0 2>0 +c0\nround 1: 0>1 =c0"),
            "at the end rank 2, chunk 0: holds the terms of 1 of 3 ranks");
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 +c0 1>0 +c0"),
            "round 0: 1>0 +c0: the term of rank 1 would be counted twice");
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 =c0 2>0 =c0"),
            "round 0: 2>0 =c0: the receiver gets this chunk twice, once by copy");
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 +c0 2>0 =c0"),
            "round 0: 2>0 =c0: the receiver gets this chunk twice, once by copy");
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 =c0 2>0 +c0"),
            "round 0: 2>0 +c0: the receiver gets this chunk twice, once by copy");
  EXPECT_EQ(message_of(kHead + "round 0: 1>0 +c0 0>2 =c0 2>1 +c0"),
            "round 0: 0>2 =c0: would overwrite what the receiver sends in this round");
  EXPECT_EQ(message_of(kHead + "round 0: 1>1 =c0"), "round 0: 1>1 =c0: a rank sends to itself");
  EXPECT_EQ(message_of(kHead + "round 0:"), "round 0 has no transfers; remove it");
}

TEST(Verify, AnExchangeSendsWhatWasHeldBefore) {
  const std::string head = "schedule v1 x all_reduce ranks=4 chunks=1\n";
  const std::string doubling = "round 0: 0>1 +c0 1>0 +c0 2>3 +c0 3>2 +c0\n";
  EXPECT_EQ(message_of(head + doubling + "round 1: 0>2 +c0 1>3 +c0 2>0 +c0 3>1 +c0\n"), "");
  // in the order of the list 1 would pass the sum of 0 and 1 on to 2
  EXPECT_EQ(message_of("schedule v1 x scan ranks=3 chunks=1\n"
                       "round 0: 0>1 +c0 1>2 +c0\nround 1: 0>2 +c0\n"),
            "");
  EXPECT_EQ(message_of(head + doubling + "round 1: 0>2 +c0 1>3 +c0 2>0 =c0 3>1 +c0\n"),
            "round 1: 2>0 =c0: would overwrite what the receiver sends in this round");
  EXPECT_EQ(message_of(head + doubling + "round 1: 0>1 +c0"),
            "round 1: 0>1 +c0: the term of rank 0 would be counted twice");
}

TEST(Verify, ReplicasMustBeBuiltInOneOrder) {
  const std::string head = "schedule v1 x all_reduce ranks=4 chunks=1\n";
  // (0+1)+(2+3) everywhere: which of two operands is a rank's own does not matter
  const std::string doubling = "round 0: 0>1 +c0 1>0 +c0 2>3 +c0 3>2 +c0\n";
  EXPECT_EQ(message_of(head + doubling + "round 1: 0>3 +c0 3>0 +c0 1>2 +c0 2>1 +c0\n"), "");
  // ranks 0 and 3 build (0+1)+(2+3), ranks 1 and 2 build (1+3)+(0+2)
  EXPECT_EQ(message_of(head + "round 0: 1>0 +c0 3>1 +c0 0>2 +c0 2>3 +c0\n"
                              "round 1: 3>0 +c0 0>3 +c0 2>1 +c0 1>2 +c0\n"),
            "at the end ranks 0 and 1 have built chunk 0 in different orders: the replicas would "
            "differ in their last bits");
  // one sum of three at every rank; against a sum of two and one more
  EXPECT_EQ(message_of(kHead + "round 0: 0>1 +c0 0>2 +c0 1>0 +c0 1>2 +c0 2>0 +c0 2>1 +c0"), "");
  const std::string copies = "round 1: 0>2 =c0\nround 2: 2>1 =c0\n";
  EXPECT_EQ(message_of(kHead + "round 0: 2>0 +c0 1>0 +c0\n" + copies), "");
  // only replicas have to agree
  EXPECT_EQ(message_of("schedule v1 x scan ranks=2 chunks=1\nround 0: 0>1 +c0\n"), "");
}

TEST(Verify, FollowsWhereValuesComeFrom) {
  const std::string gather = "schedule v1 x all_gather ranks=2 chunks=2\n";
  EXPECT_EQ(message_of(gather + "round 0: 0>1 =c0 1>0 =c1"), "");
  EXPECT_EQ(message_of(gather + "round 0: 0>1 =c0 0>1 =c1"),
            "round 0: 0>1 =c1: the sender does not have this chunk");
  EXPECT_EQ(message_of(gather + "round 0: 0>1 +c0"),
            "round 0: 0>1 +c0: the receiver has no value to reduce into");
  EXPECT_EQ(message_of(gather + "round 0: 0>1 =c0"), "at the end rank 0, chunk 1: never received");
  const std::string cast = "schedule v1 x broadcast root=1 ranks=2 chunks=1\n";
  EXPECT_EQ(message_of(cast + "round 0: 1>0 =c0"), "");
  EXPECT_EQ(message_of(cast + "round 0: 0>1 =c0"),
            "round 0: 0>1 =c0: the sender does not have this chunk");
  const std::string scatter = "schedule v1 x reduce_scatter ranks=2 chunks=2\n";
  EXPECT_EQ(message_of(scatter + "round 0: 1>0 +c0 0>1 +c1"), "");
  EXPECT_EQ(message_of(scatter + "round 0: 0>1 +c0 1>0 +c1"),
            "at the end rank 0, chunk 0: holds the terms of 1 of 2 ranks");
}

TEST(Verify, ChecksRangesOfValuesThatNoParserSaw) {
  const Schedule good = schedule::ring_all_reduce(4);
  ASSERT_TRUE(verify(good).ok());
  std::vector<Schedule> broken(11, good);
  broken[0].ranks = 0;
  broken[1].chunks = 0;
  broken[2].goal.root = 4;
  broken[3].rounds[1][0].from = 4;
  broken[4].rounds[1][0].to = -1;
  broken[5].rounds[1][0].chunk = 4;
  broken[6].rounds[1][0].how = static_cast<ReceiveOp>(7);
  broken[7].goal.kind = static_cast<GoalKind>(9);
  broken[8].ranks = 1 << 20;
  broken[9].chunks = 1 << 20;
  broken[10].rounds.emplace_back();
  for (const Schedule& s : broken) EXPECT_EQ(verify(s).code(), Code::kBadPlan);
}

TEST(Verify, RejectsADoubleContribution) {
  Schedule s = schedule::ring_all_reduce(4);
  s.rounds.push_back(schedule::ring_reduce_scatter(4).rounds[0]);
  EXPECT_EQ(verify(s).code(), Code::kBadPlan);
}

TEST(Verify, FollowsMoreRanksThanAWordHasBits) {
  Schedule s = schedule::star_all_reduce(130);
  ASSERT_TRUE(verify(s).ok());
  s.rounds[0].push_back(s.rounds[0].back());
  EXPECT_EQ(verify(s).message(), "round 0: 129>0 +c0: the term of rank 129 would be counted twice");
}

}  // namespace
}  // namespace stormo::analysis
