// One elastic member, told by hand what happens.
#include <string>
#include <vector>

#include "tests/unit/protocol/told_member.h"

namespace stormo::protocol {
namespace {

TEST_F(ElasticMemberTest, AStepIsReducedAgreedUponAndApplied) {
  begin(first_record(2));
  EXPECT_EQ(done<RunStep>()->batch, (SampleRange{.first = 0, .count = 6}));
  EXPECT_EQ(done<RunStep>()->part, (SampleRange{.first = 0, .count = 3}));
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  ASSERT_TRUE(done<AgreeOn>());
  EXPECT_EQ(done<AgreeOn>()->gradient_hash, 8u);
  EXPECT_EQ(done<AgreeOn>()->state_hash, 5u);
  EXPECT_EQ(it->held().step, 0u);
  tell(StepAgreed{.epoch = 1, .step = 1});
  EXPECT_EQ(done<ApplyUpdate>()->step, 1u);
  EXPECT_FALSE(done<StepCommitted>());
  tell(UpdateApplied{1});
  EXPECT_EQ(done<StepCommitted>()->step, 1u);
  EXPECT_EQ(done<RunStep>()->step, 2u);
}

TEST_F(ElasticMemberTest, ALossAbortsAtOnceAndEverybodyIsTold) {
  begin(first_record(3));
  tell(ProcessEnded{member(2)});
  EXPECT_TRUE(done<AbortPart>());
  ASSERT_TRUE(done<SendMessage>());
  EXPECT_EQ(std::get<MemberStatus>(done<SendMessage>()->message).standing, Standing::kHalting);
  tell(PartFailed{.epoch = 1});
  EXPECT_EQ(it->standing(), Standing::kResting);
  EXPECT_FALSE(done<SwapRecord>()) << "member 1 has not said what it has";
  tell(ElasticHeard{resting(1)});
  ASSERT_TRUE(done<SwapRecord>());
  const ElasticRecord next = done<SwapRecord>()->next;
  EXPECT_EQ(next.epoch, 2u);
  EXPECT_EQ(next.members.size(), 2u);
  tell(RegisterAnswer{next});
  EXPECT_EQ(done<StartGroup>()->record, next);
  ASSERT_EQ(done<StartGroup>()->gone.size(), 1u);
  EXPECT_EQ(done<StartGroup>()->gone.front().id, member(2));
  EXPECT_EQ(done<StartGroup>()->gone.front().how, Departure::kEnded);
  tell(GroupStarted{2});
  EXPECT_EQ(done<RunStep>()->step, 1u);
  EXPECT_EQ(done<RunStep>()->part.count, 3u);
}

TEST_F(ElasticMemberTest, TheOutcomeOfAnAbortedPartCounts) {
  begin(first_record(2));
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  tell(ElasticHeard{resting(1)});
  EXPECT_TRUE(done<AbortPart>());
  EXPECT_EQ(it->standing(), Standing::kHalting);
  tell(StepAgreed{.epoch = 1, .step = 1});
  tell(UpdateApplied{1});
  EXPECT_TRUE(done<StepCommitted>());
  EXPECT_TRUE(done<HashState>());
  EXPECT_EQ(it->standing(), Standing::kHalting);
  tell(StateHashed{.epoch = 1, .hash = 50});
  EXPECT_EQ(it->standing(), Standing::kResting);
}

TEST_F(ElasticMemberTest, WhatIsOfAnOlderEpochChangesNothing) {
  begin(first_record(2));
  ElasticRecord second = first_record(2);
  second.epoch = 2;
  tell(ElasticHeard{RecordNews{second}});
  tell(PartFailed{.epoch = 1});
  ASSERT_TRUE(done<StartGroup>());
  tell(GroupStarted{2});
  ASSERT_TRUE(done<RunStep>());
  const HeldState before = it->held();
  tell(ElasticHeard{resting(1, 1)});
  EXPECT_FALSE(done<AbortPart>());
  ASSERT_TRUE(done<SendMessage>()) << "its sender is told what it has missed";
  EXPECT_EQ(std::get<RecordNews>(done<SendMessage>()->message).record.epoch, 2u);
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  tell(GroupStarted{1});
  tell(ElasticHeard{RecordNews{first_record(1)}});
  EXPECT_TRUE(actions.empty());
  EXPECT_EQ(it->held(), before);
  EXPECT_EQ(it->epoch(), 2u);
}

TEST_F(ElasticMemberTest, WhoDoesNotReachTheRegisterWaits) {
  begin(first_record(2));
  tell(ProcessEnded{member(1)});
  tell(PartFailed{.epoch = 1});
  ASSERT_TRUE(done<SwapRecord>());
  tell(RegisterAnswer{});
  EXPECT_TRUE(done<PauseMember>());
  EXPECT_EQ(it->standing(), Standing::kResting);
  EXPECT_FALSE(done<StartGroup>());
  EXPECT_FALSE(done<SwapRecord>());
  tell(ElasticTick{}, milliseconds(500));
  EXPECT_TRUE(done<ReadRegister>()) << "somebody else may have written";
  tell(RegisterAnswer{first_record(2)});
  EXPECT_TRUE(done<SwapRecord>());
}

TEST_F(ElasticMemberTest, HalfThatMayLiveLetsTheOtherHalfGoFirst) {
  begin(first_record(2));
  for (int i = 0; i < 9; ++i) tell(ElasticTick{}, milliseconds(250));
  EXPECT_EQ(it->standing(), Standing::kHalting);
  tell(PartFailed{.epoch = 1});
  EXPECT_FALSE(done<SwapRecord>());
  EXPECT_LE(it->wakes_at(), now + milliseconds(500));
  tell(ElasticTick{}, milliseconds(500));
  tell(RegisterAnswer{first_record(2)});
  EXPECT_TRUE(done<SwapRecord>());
}

TEST_F(ElasticMemberTest, AnotherPlanIsAnError) {
  ElasticRecord record = first_record(2);
  record.plan_hash = 10;
  tell(ElasticTick{});
  tell(RegisterAnswer{record});
  ASSERT_TRUE(done<EndMember>());
  EXPECT_TRUE(done<EndMember>()->is_failure);
  EXPECT_NE(done<EndMember>()->why.find("same version, recipe"), std::string::npos);
  EXPECT_TRUE(it->has_ended());
}

TEST_F(ElasticMemberTest, WhoWasStartedAgainEnds) {
  begin(first_record(2));
  ElasticRecord second = first_record(2);
  second.epoch = 2;
  second.members[0].id = member(0, 2);
  tell(ElasticHeard{RecordNews{second}});
  EXPECT_TRUE(done<AbortPart>());
  tell(PartFailed{.epoch = 1});
  EXPECT_TRUE(it->has_ended());
  EXPECT_FALSE(done<EndMember>()->is_failure);
}

TEST_F(ElasticMemberTest, WhoIsLeftOutAsksToBeLetInAndIsHealed) {
  begin(first_record(2));
  ElasticRecord second = first_record(2);
  second.epoch = 2;
  second.members.erase(second.members.begin());
  second.donors = {"m1"};
  tell(ElasticHeard{RecordNews{second}});
  tell(PartFailed{.epoch = 1});
  EXPECT_EQ(it->standing(), Standing::kOutside);
  EXPECT_TRUE(done<PauseMember>());
  ElasticRecord third = second;
  third.epoch = 3;
  third.base_step = 4;
  third.members.push_back({.id = member(0)});
  tell(ElasticHeard{RecordNews{third}});
  EXPECT_TRUE(done<ResumeMember>());
  EXPECT_FALSE(it->held().is_whole);
  tell(GroupStarted{3});
  EXPECT_TRUE(done<RunStep>()->receives);
  EXPECT_EQ(done<RunStep>()->part.count, 0u);
  tell(StepReduced{.epoch = 3, .step = 5, .gradient_hash = 8});
  EXPECT_EQ(done<AgreeOn>()->state_hash, 0u);
  tell(StepAgreed{.epoch = 3, .step = 5});
  tell(UpdateApplied{3});
  EXPECT_FALSE(done<StepCommitted>());
  EXPECT_TRUE(done<HashState>()) << "everything has arrived";
  tell(StateHashed{.epoch = 3, .hash = 60});
  tell(StepReduced{.epoch = 3, .step = 6, .gradient_hash = 9});
  EXPECT_EQ(done<AgreeOn>()->state_hash, 60u);
  tell(StepAgreed{.epoch = 3, .step = 6});
  EXPECT_TRUE(it->held().is_whole);
  tell(UpdateApplied{3});
  EXPECT_TRUE(done<StepCommitted>());
  EXPECT_GT(done<RunStep>()->part.count, 0u);
}

TEST_F(ElasticMemberTest, GradientsThatAlwaysDifferEndTheRun) {
  begin(first_record(2));
  for (int i = 0; i < 3; ++i) {
    EXPECT_FALSE(it->has_ended());
    tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
    tell(StepAgreed{.epoch = 1, .step = 1, .verdict = AgreeVerdict::kGradientsDiffer});
    EXPECT_EQ(done<RunStep>().has_value(), i < 2);
  }
  ASSERT_TRUE(done<EndMember>());
  EXPECT_TRUE(done<EndMember>()->is_failure);
}

TEST_F(ElasticMemberTest, AStopEndsAllAfterTheSameStep) {
  begin(first_record(2));
  tell(StopAsked{});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_TRUE(done<AgreeOn>()->stops);
  tell(StepAgreed{.epoch = 1, .step = 1, .stops = true});
  tell(UpdateApplied{1});
  EXPECT_FALSE(it->has_ended()) << "the other one may need what this one has";
  MemberStatus other = resting(1);
  other.standing = Standing::kRunning;
  other.held.step = 1;
  tell(ElasticHeard{other});
  EXPECT_TRUE(it->has_ended());
}

TEST_F(ElasticMemberTest, WhoLeavesDoesSoAfterAStepThatAllHaveCommitted) {
  begin(first_record(2));
  tell(LeaveAsked{});
  EXPECT_FALSE(done<AbortPart>());
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_TRUE(done<AgreeOn>()->changes);
  tell(StepAgreed{.epoch = 1, .step = 1, .changes = true});
  tell(UpdateApplied{1});
  EXPECT_FALSE(done<RunStep>());
  EXPECT_TRUE(done<HashState>());
  tell(StateHashed{.epoch = 1, .hash = 50});
  EXPECT_EQ(it->standing(), Standing::kResting);
}

/// What a member says while it trains.
MemberStatus running(int i, bool is_whole, bool leaves) {
  return {.from = member(i),
          .epoch = 1,
          .standing = Standing::kRunning,
          .held = {.step = 0, .is_whole = is_whole, .state_hash = 5},
          .leaves = leaves,
          .heard = {member(0)}};
}

TEST_F(ElasticMemberTest, WhoLeavesWaitsForOthersThatHaveTheState) {
  begin(first_record(2));
  tell(LeaveAsked{});
  tell(ElasticHeard{running(1, /*is_whole=*/false, /*leaves=*/false)});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_FALSE(done<AgreeOn>()->changes) << "the other one would begin again to get it";
  EXPECT_FALSE(done<AgreeOn>()->stops);
}

TEST_F(ElasticMemberTest, WhenAllAreToLeaveTheyStop) {
  begin(first_record(2));
  tell(LeaveAsked{});
  tell(ElasticHeard{running(1, /*is_whole=*/true, /*leaves=*/true)});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_TRUE(done<AgreeOn>()->stops);
  EXPECT_FALSE(done<AgreeOn>()->changes);
}

TEST_F(ElasticMemberTest, WhoHasLeftSaysSo) {
  begin(first_record(2));
  tell(LeaveAsked{});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  tell(StepAgreed{.epoch = 1, .step = 1, .changes = true});
  tell(UpdateApplied{1});
  tell(StateHashed{.epoch = 1, .hash = 50});
  ElasticRecord second = first_record(2);
  second.epoch = 2;
  second.members.erase(second.members.begin());
  second.donors = {"m1"};
  tell(ElasticHeard{RecordNews{second}});
  ASSERT_TRUE(done<EndMember>());
  EXPECT_TRUE(done<EndMember>()->has_left);
  EXPECT_FALSE(done<EndMember>()->is_failure);
}

TEST_F(ElasticMemberTest, WithoutTheStateThereIsNoNextEpoch) {
  ElasticRecord record = first_record(2);
  record.base_step = 4;
  record.donors = {"m1"};
  begin(record);
  tell(ProcessEnded{member(1)});
  tell(PartFailed{.epoch = 1});
  ASSERT_TRUE(done<EndMember>());
  EXPECT_TRUE(done<EndMember>()->is_failure);
  EXPECT_NE(done<EndMember>()->why.find("checkpoint"), std::string::npos);
}

TEST_F(ElasticMemberTest, TheSameMembersDoNotTryAgainWithoutEnd) {
  begin(first_record(2));
  tell(PartFailed{.epoch = 1});
  tell(ElasticHeard{resting(1)});
  EXPECT_FALSE(done<SwapRecord>());
  tell(ElasticTick{}, milliseconds(250));
  EXPECT_FALSE(done<SwapRecord>());
  tell(ElasticTick{}, milliseconds(245));
  EXPECT_FALSE(done<SwapRecord>());
  tell(ElasticTick{}, milliseconds(5));
  tell(RegisterAnswer{first_record(2)});
  EXPECT_TRUE(done<SwapRecord>());
}

TEST_F(ElasticMemberTest, WhoseStepDoesNotEndWhileOthersGoOnEndsItsProcess) {
  begin(first_record(3));
  ElasticRecord next = first_record(3);
  next.epoch = 2;
  next.members.erase(next.members.begin());
  next.donors.erase(next.donors.begin());
  tell(ElasticHeard{RecordNews{next}});
  EXPECT_TRUE(done<AbortPart>());
  for (int beats = 0; beats < 4 * 9; ++beats) {
    tell(ElasticTick{}, milliseconds(250));
    ASSERT_FALSE(done<EndProcess>()) << beats;
  }
  ElasticMember comes_back = *it;
  (void)comes_back.handle(PartFailed{.epoch = 1}, now + milliseconds(1));
  EXPECT_EQ(comes_back.standing(), Standing::kOutside);
  for (int beats = 0; beats < 8; ++beats) {
    if (!done<EndProcess>()) tell(ElasticTick{}, milliseconds(250));
  }
  ASSERT_TRUE(done<EndProcess>());
  EXPECT_NE(done<EndProcess>()->why.find("step 1"), std::string::npos);
  EXPECT_TRUE(it->has_ended());
}

class ElasticMinimumTest : public ElasticMemberTest {
 protected:
  ElasticMinimumTest() : ElasticMemberTest(ElasticOptions{.min_ranks = 2}) {}
};

TEST_F(ElasticMinimumTest, FewerMembersWait) {
  begin(first_record(2));
  tell(ProcessEnded{member(1)});
  tell(PartFailed{.epoch = 1});
  EXPECT_FALSE(done<SwapRecord>());
  ASSERT_TRUE(done<PauseMember>());
  EXPECT_NE(done<PauseMember>()->why.find("fewer than 2"), std::string::npos);
}

TEST_F(ElasticMinimumTest, OfThoseThatLeaveAsManyStayAsTheJobNeeds) {
  begin(first_record(3));
  tell(LeaveAsked{});
  tell(ElasticHeard{running(2, /*is_whole=*/true, /*leaves=*/true)});
  tell(StepReduced{.epoch = 1, .step = 1, .gradient_hash = 8});
  EXPECT_TRUE(done<AgreeOn>()->changes);
  tell(StepAgreed{.epoch = 1, .step = 1, .changes = true});
  tell(UpdateApplied{1});
  tell(StateHashed{.epoch = 1, .hash = 50});
  for (const int i : {1, 2}) {
    MemberStatus other = resting(i);
    other.held = it->held();
    other.leaves = i == 2;
    other.heard = {member(0), member(3 - i)};
    tell(ElasticHeard{other});
  }
  ASSERT_TRUE(done<SwapRecord>());
  const ElasticRecord next = done<SwapRecord>()->next;
  ASSERT_EQ(next.members.size(), 2u);
  EXPECT_EQ(next.members[0].id, member(0)) << "it leaves when there is another one";
  EXPECT_EQ(next.members[1].id, member(1));
}

}  // namespace
}  // namespace stormo::protocol
