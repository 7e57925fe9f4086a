// How an elastic member lets others in.
#include <string>
#include <utility>
#include <vector>

#include "tests/unit/protocol/told_member.h"

namespace stormo::protocol {
namespace {

/// Member 7, which asks members 0 and 1 to be let in.
MemberStatus newcomer() {
  return {.from = member(7),
          .epoch = 1,
          .heard = {member(0), member(1)},
          .plan_hash = 9,
          .address = "there"};
}

TEST_F(ElasticMemberTest, OthersAreLetInWhenAllHaveMadeTheGroupWithThem) {
  begin(first_record(2));
  MemberStatus joins = newcomer(), other = resting(1);
  other.standing = Standing::kRunning;
  other.heard = {member(0), member(7)};
  tell(ElasticHeard{joins});
  EXPECT_FALSE(done<PrepareGroup>()) << "member 1 does not hear it yet";
  tell(ElasticHeard{other});
  ASSERT_TRUE(done<PrepareGroup>());
  EXPECT_EQ(done<PrepareGroup>()->wish.members.size(), 3u);
  const auto asks_for_change = [&](std::uint64_t step) {
    tell(StepReduced{.epoch = 1, .step = step, .gradient_hash = 8});
    EXPECT_FALSE(done<PrepareGroup>()) << "once is enough";
    const bool asks = done<AgreeOn>()->changes;
    tell(StepAgreed{.epoch = 1, .step = step, .changes = asks});
    return asks;
  };
  EXPECT_FALSE(asks_for_change(1));
  tell(UpdateApplied{1});
  tell(GroupReady{.epoch = 2, .group = 1});
  other.ready_group = joins.ready_group = 1;
  tell(ElasticHeard{other});
  EXPECT_FALSE(asks_for_change(2)) << "the newcomer has not made it";
  tell(UpdateApplied{1});
  tell(ElasticHeard{joins});
  EXPECT_TRUE(asks_for_change(3));
  ASSERT_TRUE(done<SwapRecord>()) << "beside the update";
  const ElasticRecord next = done<SwapRecord>()->next;
  EXPECT_EQ(next.members.size(), 3u);
  EXPECT_EQ(next.base_step, 3u);
  EXPECT_EQ(next.donors, (std::vector<std::string>{"m0", "m1"}));
  EXPECT_EQ(next.group, 1u);
  tell(RegisterAnswer{next});
  tell(UpdateApplied{1});
  tell(StateHashed{.epoch = 1, .hash = 50});
  ASSERT_TRUE(done<StartGroup>());
  EXPECT_EQ(done<StartGroup>()->record, next);
}

TEST_F(ElasticMemberTest, NobodyIsLetInWhileAnotherOneGetsTheState) {
  ElasticRecord record = first_record(2);
  record.donors = {"m0"};
  begin(record);
  MemberStatus joins = newcomer(), other = resting(1);
  other.standing = Standing::kRunning;
  other.heard = {member(0), member(7)};
  tell(ElasticHeard{joins});
  tell(ElasticHeard{other});
  tell(GroupReady{.epoch = 2, .group = 1});
  other.ready_group = joins.ready_group = 1;
  tell(ElasticHeard{joins});
  tell(ElasticHeard{other});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_FALSE(done<AgreeOn>()->changes);
  tell(StepAgreed{.epoch = 1, .step = 1});
  tell(UpdateApplied{1});
  tell(StateHashed{.epoch = 1, .hash = 50});
  tell(StepReduced{.epoch = 1, .step = 2, .gradient_hash = 8});
  EXPECT_TRUE(done<AgreeOn>()->changes) << "it has all, and this step compares it";
  tell(StepAgreed{.epoch = 1, .step = 2, .changes = true});
  ASSERT_TRUE(done<SwapRecord>());
  EXPECT_EQ(done<SwapRecord>()->next.donors, (std::vector<std::string>{"m0", "m1"}));
}

TEST_F(ElasticMemberTest, WhoGetsNoGroupReadyLetsOthersInWithoutIt) {
  begin(first_record(1));
  MemberStatus joins = newcomer();
  joins.heard = {member(0)};
  tell(ElasticHeard{joins});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_FALSE(done<AgreeOn>()->changes);
  tell(StepAgreed{.epoch = 1, .step = 1});
  tell(UpdateApplied{1});
  for (int i = 0; i < 20; ++i) tell(ElasticHeard{joins}, milliseconds(250));
  tell(StepReduced{.epoch = 1, .step = 2, .gradient_hash = 8});
  EXPECT_TRUE(done<AgreeOn>()->changes);
  tell(StepAgreed{.epoch = 1, .step = 2, .changes = true});
  tell(UpdateApplied{1});
  tell(StateHashed{.epoch = 1, .hash = 50});
  ASSERT_TRUE(done<SwapRecord>());
  EXPECT_EQ(done<SwapRecord>()->next.group, 0u);
}

TEST_F(ElasticMemberTest, OnlyTheFirstMembersNewestWishCounts) {
  ElasticRecord record = first_record(2);
  std::swap(record.members[0], record.members[1]);
  begin(record);
  MemberStatus first = resting(1), joins = newcomer();
  first.standing = Standing::kRunning;
  first.wish = {.epoch = 2, .members = record.members, .group = 2};
  first.wish.members.push_back({.id = joins.from, .address = joins.address});
  joins.wish = first.wish;
  tell(ElasticHeard{joins});
  EXPECT_FALSE(done<PrepareGroup>());
  tell(ElasticHeard{first});
  ASSERT_TRUE(done<PrepareGroup>());
  EXPECT_EQ(done<PrepareGroup>()->wish, first.wish);
  tell(ElasticHeard{first});
  EXPECT_FALSE(done<PrepareGroup>()) << "it is the same one";
  tell(GroupReady{.epoch = 2, .group = 1});
  tell(GroupReady{.epoch = 2, .group = 2});
  ASSERT_TRUE(done<SendMessage>());
  EXPECT_EQ(std::get<MemberStatus>(done<SendMessage>()->message).ready_group, 2u);
}

}  // namespace
}  // namespace stormo::protocol
