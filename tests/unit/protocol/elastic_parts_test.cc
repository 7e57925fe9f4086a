// What decides in elastic training, apart from each other: the ledger, who is lost, who goes on
// from which step, and how long those that come and go wait.
#include <stormo/protocol/elastic/ledger.h>
#include <stormo/protocol/elastic/loss_history.h>
#include <stormo/protocol/elastic/membership_change.h>
#include <stormo/protocol/elastic/next_record.h>
#include <stormo/protocol/elastic/peer_watch.h>

#include <gtest/gtest.h>

#include <span>
#include <string>
#include <vector>

namespace stormo::protocol {
namespace {

using std::chrono::milliseconds;
using std::chrono::minutes;
using std::chrono::seconds;

MemberId id(int i, std::uint64_t incarnation = 1) {
  return {.identity = "m" + std::to_string(i), .incarnation = incarnation};
}

ElasticRecord record_of(int members, int donors) {
  ElasticRecord record{.epoch = 3, .base_step = 10};
  for (int i = 0; i < members; ++i) record.members.push_back({.id = id(i)});
  for (int i = 0; i < donors; ++i) record.donors.push_back(id(i).identity);
  return record;
}

TEST(ElasticLedger, PartsOfAllRanksAreTheBatch) {
  for (const std::uint64_t batch : {1u, 2u, 7u, 16u, 97u}) {
    for (const int members : {1, 2, 3, 5}) {
      for (const int donors : {1, members}) {
        ElasticRecord record = record_of(members, donors);
        record.members.front().shares = 3;
        const SampleRange all = batch_of(5, batch);
        EXPECT_EQ(all, (SampleRange{.first = 4 * batch, .count = batch}));
        std::uint64_t next = all.first;
        for (std::size_t rank = 0; rank < record.members.size(); ++rank) {
          const SampleRange part = part_of(all, record, rank, /*is_healing=*/true);
          EXPECT_EQ(part.first, next);
          next += part.count;
          EXPECT_TRUE(static_cast<int>(rank) < donors || part.count == 0);
        }
        EXPECT_EQ(next, all.first + batch);
      }
    }
  }
}

TEST(ElasticLedger, SharesAreInProportion) {
  ElasticRecord record = record_of(2, 2);
  record.members[1].shares = 3;
  EXPECT_EQ(part_of(batch_of(1, 8), record, 0, false).count, 2u);
  EXPECT_EQ(part_of(batch_of(1, 8), record, 1, false), (SampleRange{.first = 2, .count = 6}));
}

TEST(ElasticHealing, EachSliceIsSentOnce) {
  const ElasticRecord record = record_of(3, 2);
  for (const std::uint32_t slices : {1u, 2u, 7u}) {
    for (const std::uint32_t per_step : {1u, 3u, 8u}) {
      const Healing healing{.slices = slices, .slices_per_step = per_step};
      std::uint32_t next = 0;
      for (std::uint64_t step = 8; step < 20; ++step) {
        const SliceRange range = healing.slices_of(record, step);
        if (range.count == 0) continue;
        EXPECT_EQ(range.first, next);
        EXPECT_TRUE(step > record.base_step && step <= healing.last_step(record));
        next += range.count;
      }
      EXPECT_EQ(next, slices);
      // compared in the step after the last one, and idle until then
      EXPECT_TRUE(healing.is_healing(record, healing.last_step(record) + 1));
      EXPECT_FALSE(healing.is_healing(record, healing.last_step(record) + 2));
    }
  }
}

/// Host a has two donors, b has one; a/2 and c/0 have not got the state.
ElasticRecord record_of_hosts() {
  ElasticRecord record{.epoch = 3, .base_step = 10, .donors = {"a/0", "a/1", "b/0"}};
  for (const char* name : {"a/0", "a/1", "a/2", "b/0", "c/0"}) {
    record.members.push_back({.id = {.identity = name, .incarnation = 1}});
  }
  return record;
}

std::vector<std::string> donors_of(const ElasticRecord& record, const std::string& receiver) {
  std::vector<std::string> found;
  for (std::uint32_t slice = 0; slice < 4; ++slice) {
    found.push_back(Healing::donor_of(record, slice, receiver));
  }
  return found;
}

using Names = std::vector<std::string>;

TEST(ElasticHealing, SlicesComeFromDonorsOnTheReceiversHost) {
  const ElasticRecord record = record_of_hosts();
  EXPECT_EQ(donors_of(record, "a/2"), (Names{"a/0", "a/1", "a/0", "a/1"}));
  EXPECT_EQ(donors_of(record, "b/1"), (Names{"b/0", "b/0", "b/0", "b/0"}));
  EXPECT_EQ(donors_of(record, "c/0"), (Names{"a/0", "a/1", "b/0", "a/0"})) << "none is there";
}

TEST(ElasticHealing, StaysOnHostsOnlyWhereEachHasADonor) {
  ElasticRecord record = record_of_hosts();
  const Healing healing{.slices = 8, .slices_per_step = 1, .near_slices_per_step = 4};
  EXPECT_FALSE(Healing::is_near(record));
  EXPECT_EQ(healing.last_step(record), 18u);
  record.members.pop_back();  // c/0
  EXPECT_TRUE(Healing::is_near(record));
  EXPECT_EQ(healing.last_step(record), 12u);
  EXPECT_EQ(healing.slices_of(record, 12), (SliceRange{.first = 4, .count = 4}));
}

TEST(ElasticHealing, SlicesComeFromDonorsOfTheSamePartOfTheModel) {
  ElasticRecord record = record_of_hosts();
  for (const std::size_t member : {1u, 2u, 4u}) record.members[member].part = 1;
  EXPECT_EQ(donors_of(record, "a/2"), (Names{"a/1", "a/1", "a/1", "a/1"}));
  EXPECT_EQ(donors_of(record, "c/0"), (Names{"a/1", "a/1", "a/1", "a/1"}));
  record.members.pop_back();  // c/0
  EXPECT_TRUE(Healing::is_near(record));
  record.members[2].part = 0;
  record.donors = {"a/1", "b/0"};
  EXPECT_FALSE(Healing::is_near(record)) << "the donor of a/0 and a/2 is on another host";
}

TEST(ElasticHealing, NothingIsSentWhereAllAreDonors) {
  const ElasticRecord record = record_of(3, 3);
  EXPECT_EQ(Healing{.slices = 4}.slices_of(record, 11), SliceRange{});
  EXPECT_FALSE(Healing{.slices = 4}.is_healing(record, 11));
}

/// Members that have committed step 10, and all hear each other.
std::vector<Survivor> survivors(int n) {
  std::vector<Survivor> all;
  for (int i = 0; i < n; ++i) {
    Survivor s{.entry = {.id = id(i)},
               .held = {.step = 10, .is_whole = true, .state_hash = 5, .gradient_hash = 6}};
    for (int j = 0; j < n; ++j) {
      if (j != i) s.heard.push_back(id(j));
    }
    all.push_back(s);
  }
  return all;
}

void prepare(HeldState& held, std::uint64_t hash = 77) {
  held.prepared_step = held.step + 1;
  held.prepared_hash = hash;
}

using Places = std::vector<std::size_t>;

TEST(ElasticMutualSet, IsAllWhereAllHearEachOther) {
  EXPECT_EQ(mutual_set(survivors(4)), (Places{0, 1, 2, 3}));
  EXPECT_EQ(mutual_set({}), Places{});
}

TEST(ElasticMutualSet, OneOfTwoThatDoNotHearEachOtherIsLeftOut) {
  std::vector<Survivor> all = survivors(4);
  std::erase(all[0].heard, id(2));
  EXPECT_EQ(mutual_set(all), (Places{0, 1, 3}));
}

TEST(ElasticMutualSet, WhoIsDeafIsLeftOutAndNotTheOthers) {
  std::vector<Survivor> all = survivors(4);
  all[0].heard.clear();
  EXPECT_EQ(mutual_set(all), (Places{1, 2, 3}));
}

TEST(ElasticMutualSet, NewcomersDisplaceNoMember) {
  std::vector<Survivor> all = survivors(4);
  all[0].is_member = false;
  std::erase(all[3].heard, id(0));
  EXPECT_EQ(mutual_set(all), (Places{1, 2, 3}));
}

TEST(ElasticMutualSet, NewcomersNeedNotHearEachOther) {
  std::vector<Survivor> all = survivors(3);
  all[1].is_member = all[2].is_member = false;
  all[1].heard = all[2].heard = {id(0)};
  EXPECT_EQ(mutual_set(all), (Places{0, 1, 2}));
}

TEST(ElasticBase, WhatOneHasCommittedIsTheBase) {
  std::vector<Survivor> all = survivors(3);
  for (const std::size_t i : {0u, 2u}) {
    all[i].held = {.step = 9, .is_whole = true, .state_hash = 4};
    prepare(all[i].held, 6);
  }
  const auto base = find_base(all);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->step, 10u);
  EXPECT_EQ(base->state_hash, 5u);
  EXPECT_EQ(base->holds, (std::vector{true, true, true}));
  all[2].held.prepared_hash = 7;  // of another gradient
  EXPECT_EQ(find_base(all)->holds, (std::vector{true, true, false}));
}

TEST(ElasticBase, WhatAllHavePreparedMayHaveBeenCommittedBySomebody) {
  std::vector<Survivor> all = survivors(3);
  for (Survivor& s : all) prepare(s.held);
  const auto base = find_base(all);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->step, 11u);
  EXPECT_EQ(base->state_hash, 0u);
  EXPECT_EQ(base->holds, (std::vector{true, true, true}));
}

TEST(ElasticBase, ElseTheStepIsRedone) {
  std::vector<Survivor> all = survivors(3);
  for (const std::size_t i : {0u, 1u}) prepare(all[i].held);
  EXPECT_EQ(find_base(all)->step, 10u);
  prepare(all[2].held, 78);
  EXPECT_EQ(find_base(all)->step, 10u);
  EXPECT_EQ(find_base(all)->state_hash, 5u);
}

TEST(ElasticBase, MembersThatAreBeingHealedAndThoseOutsideDecideNothing) {
  std::vector<Survivor> all = survivors(3);
  all[1].held = {.step = 12};
  all[2].held.step = 13;
  all[2].is_member = false;
  const auto base = find_base(all);
  ASSERT_TRUE(base);
  EXPECT_EQ(base->step, 10u);
  EXPECT_EQ(base->holds, (std::vector{true, false, false}));
  all[0].held.is_whole = false;
  EXPECT_FALSE(find_base(all));
}

TEST(ElasticBase, WhereStatesDifferMostAreRight) {
  std::vector<Survivor> all = survivors(3);
  all[0].held.state_hash = 1;
  EXPECT_EQ(find_base(all)->state_hash, 5u);
  EXPECT_EQ(find_base(all)->holds, (std::vector{false, true, true}));
}

/// Two pipelines of two stages, whose states and gradients have hashes of their own.
std::vector<Survivor> of_pipelines() {
  std::vector<Survivor> all = survivors(4);
  for (const std::size_t i : {1u, 3u}) {
    all[i].entry.part = 1;
    all[i].held.state_hash = 15;
    all[i].held.gradient_hash = 16;
  }
  return all;
}

TEST(ElasticBase, StatesAndGradientsAreComparedInEachPartOfTheModel) {
  std::vector<Survivor> all = of_pipelines();
  EXPECT_EQ(find_base(all)->step, 10u);
  EXPECT_EQ(find_base(all)->state_hash, 0u) << "there are two";
  EXPECT_EQ(find_base(all)->holds, (std::vector{true, true, true, true}));
  all[3].held.state_hash = 5;  // that of the other part
  EXPECT_EQ(find_base(all)->holds, (std::vector{true, true, true, false}));
  all = of_pipelines();
  for (std::size_t i = 0; i < all.size(); ++i) prepare(all[i].held, 70 + all[i].entry.part);
  EXPECT_EQ(find_base(all)->step, 11u);
  EXPECT_EQ(find_base(all)->holds, (std::vector{true, true, true, true}));
  all[3].held.prepared_hash = 70;
  EXPECT_EQ(find_base(all)->step, 10u) << "gradients of a part differ: nobody can have committed";
}

TEST(ElasticBase, WhatOneHasCommittedIsTheBaseOfPartsOfWhichNobodyHas) {
  std::vector<Survivor> all = of_pipelines();
  for (const std::size_t i : {1u, 3u}) {
    all[i].held = {.step = 9, .is_whole = true, .state_hash = 14};
    prepare(all[i].held, 16);
  }
  EXPECT_EQ(find_base(all)->step, 10u);
  EXPECT_EQ(find_base(all)->holds, (std::vector{true, true, true, true}));
}

ElasticRecord record_of_pipelines() {
  ElasticRecord present = record_of(4, 4);
  present.members[1].part = present.members[3].part = 1;
  return present;
}

TEST(ElasticNextRecord, ThereIsNoneWithoutSomebodyWhoHasTheStateOfAPart) {
  std::vector<Survivor> all = of_pipelines();
  all.erase(all.begin() + 1);
  const auto without_one = next_record(record_of_pipelines(), all);
  ASSERT_TRUE(without_one);
  EXPECT_EQ(without_one->donors, (Names{"m0", "m2", "m3"}));
  EXPECT_EQ(without_one->members.back().part, 1u);
  all.back().held.is_whole = false;  // it is being healed
  EXPECT_FALSE(next_record(record_of_pipelines(), all));
  all.pop_back();
  EXPECT_FALSE(next_record(record_of_pipelines(), all));
}

TEST(ElasticNextRecord, WhoLeavesStaysAsLongAsNobodyElseHasItsPart) {
  std::vector<Survivor> all = of_pipelines();
  for (const std::size_t i : {1u, 2u, 3u}) all[i].leaves = true;
  const auto next = next_record(record_of_pipelines(), all);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->donors, (Names{"m0", "m1", "m3"}));
}

TEST(ElasticNextRecord, WhoLeavesIsLeftOutUnlessItMayBeNeeded) {
  const ElasticRecord present = record_of(3, 3);
  std::vector<Survivor> all = survivors(3);
  all[0].leaves = true;
  const auto next = next_record(present, all);
  ASSERT_TRUE(next);
  EXPECT_EQ(next->epoch, 4u);
  EXPECT_EQ(next->members, (std::vector<ElasticEntry>{{.id = id(1)}, {.id = id(2)}}));
  EXPECT_EQ(next->donors, (std::vector<std::string>{"m1", "m2"}));
  const auto without_one = next_record(present, std::span(all).first(2));
  EXPECT_EQ(without_one->donors, (std::vector<std::string>{"m0", "m1"}));
  all[1].held.is_whole = all[2].held.is_whole = false;
  EXPECT_EQ(next_record(present, all)->donors, (std::vector<std::string>{"m0"}));
  EXPECT_EQ(next_record(present, all)->members.size(), 3u);
}

TEST(NextRecord, WhoJoinsStandsBehindTheLastOneOfItsHost) {
  ElasticRecord present{.epoch = 4};
  std::vector<Survivor> all;
  for (const char* name : {"a/1", "b/0", "a/0", "c/0", "b/1"}) {
    Survivor& s = all.emplace_back();
    s.entry.id = {name, 1};
    s.held = {.step = 7, .is_whole = true, .state_hash = 5};
    s.is_member = all.size() <= 2;
    if (s.is_member) present.members.push_back(s.entry);
  }
  const auto next = next_record(present, all);
  ASSERT_TRUE(next);
  std::vector<std::string> names;
  for (const ElasticEntry& m : next->members) names.push_back(m.id.identity);
  EXPECT_EQ(names, (std::vector<std::string>{"a/1", "a/0", "b/0", "b/1", "c/0"}));
}

class ElasticWatch : public testing::Test {
 protected:
  ElasticWatch() {
    watch.advance(now);
    watch.begin(record_of(3, 3));
  }
  /// This member runs; those that are named send beats.
  void run(Duration length, const std::vector<MemberId>& beating, bool they_wait = true) {
    for (const TimePoint end = now + length; now < end;) {
      watch.advance(now += milliseconds(50));
      for (const MemberId& from : beating) {
        watch.hear({.from = from, .standing = Standing::kRunning, .is_waiting = they_wait});
      }
    }
  }
  TimePoint now = TimePoint{} + seconds(100);
  PeerWatch watch{id(0), {}};
};

TEST_F(ElasticWatch, SilenceIsALoss) {
  run(milliseconds(1'950), {id(1)});
  EXPECT_FALSE(watch.is_lost(id(2)));
  EXPECT_EQ(watch.next_loss(), milliseconds(50));
  run(milliseconds(100), {id(1)});
  EXPECT_TRUE(watch.is_lost(id(2)));
  EXPECT_FALSE(watch.is_lost(id(1)));
  EXPECT_EQ(watch.heard(), std::vector<MemberId>{id(1)});
}

TEST_F(ElasticWatch, ItsOwnPauseIsNotTheSilenceOfOthers) {
  watch.advance(now += seconds(60));
  EXPECT_FALSE(watch.is_lost(id(1)));
  EXPECT_EQ(watch.own_time(), WatchLimits{}.beat);
}

TEST_F(ElasticWatch, BeatsWithoutProgressAreALossUnlessItWaits) {
  run(seconds(15), {id(1)});
  EXPECT_FALSE(watch.is_lost(id(1)));
  run(seconds(11), {id(1)}, /*they_wait=*/false);
  EXPECT_TRUE(watch.is_lost(id(1)));
  watch.note_step(seconds(4));
  EXPECT_FALSE(watch.is_lost(id(1)));
}

TEST_F(ElasticWatch, ABrokenConnectionCountsUntilTheNextEpoch) {
  watch.blame("m1");
  run(seconds(1), {id(1), id(2)});
  EXPECT_TRUE(watch.is_lost(id(1)));
  watch.begin(record_of(3, 3));
  EXPECT_FALSE(watch.is_lost(id(1)));
}

TEST_F(ElasticWatch, AProcessThatHasEndedStaysDead) {
  watch.bury(id(1));
  run(milliseconds(100), {id(1)});
  watch.begin(record_of(3, 3));
  EXPECT_TRUE(watch.is_lost(id(1)));
}

TEST_F(ElasticWatch, AnotherStartOfAMemberSaysThatTheFormerHasEnded) {
  run(milliseconds(50), {id(1, 2)});
  EXPECT_TRUE(watch.is_dead(id(1)));
  // it may join before there is an epoch without the former
  ASSERT_EQ(watch.outside().size(), 1u);
  EXPECT_EQ(watch.outside().front()->from, id(1, 2));
  watch.begin(record_of(1, 1));
  run(milliseconds(50), {id(1, 2), id(1)});
  ASSERT_EQ(watch.outside().size(), 1u);
  EXPECT_EQ(watch.outside().front()->from, id(1, 2));
}

TEST_F(ElasticWatch, ItKnowsWhatHasBecomeOfTheOthers) {
  const auto all = [this] {
    return std::vector{watch.departure_of(id(1)), watch.departure_of(id(2))};
  };
  using enum Departure;
  EXPECT_EQ(all(), (std::vector{kUnknown, kUnknown}));
  run(seconds(3), {id(1)}, /*they_wait=*/false);
  EXPECT_EQ(all(), (std::vector{kUnknown, kSilent}));
  run(seconds(11), {id(1)}, /*they_wait=*/false);
  EXPECT_EQ(all(), (std::vector{kStuck, kSilent}));
  watch.blame("m1");
  watch.bury(id(2));
  EXPECT_EQ(all(), (std::vector{kUnreachable, kEnded}));
  watch.hear({.from = id(2), .leaves = true});
  EXPECT_EQ(all(), (std::vector{kUnreachable, kLeft}));
}

TEST(MembershipChange, SaysWhoWasLostHasLeftAndHasJoined) {
  const std::vector<MemberGone> gone = {{id(1), Departure::kLeft}, {id(2), Departure::kSilent}};
  const ElasticRecord before = record_of(4, 4);
  ElasticRecord now{.members = {{.id = id(0)}, {.id = id(3, 2)}, {.id = id(7)}}};
  MembershipChange change = change_between(before, now, gone);
  EXPECT_EQ(change.left, std::vector<std::string>{"m1"});
  EXPECT_EQ(change.lost, (std::vector<std::string>{"m2", "m3"}));
  EXPECT_EQ(change.joined, (std::vector<std::string>{"m3", "m7"}));
  EXPECT_EQ(change.cause, "silent");
  const ElasticRecord fewer = record_of(2, 2);
  EXPECT_EQ(change_between(record_of(3, 3), fewer, {}).cause, "unknown");
  change = change_between(fewer, record_of(3, 2), gone);
  EXPECT_TRUE(change.lost.empty() && change.left.empty());
  EXPECT_EQ(change.cause, "joined");
  EXPECT_EQ(change_between(fewer, fewer, gone).cause, "again");
  now.members = {{.id = id(0)}};
  EXPECT_EQ(change_between(fewer, now, gone).cause, "left");
}

TEST(ElasticLosses, WhoComesAndGoesWaitsLongerEachTime) {
  LossHistory losses({});
  TimePoint now = TimePoint{} + minutes(100);
  for (int i = 0; i < 2; ++i) {
    losses.note("m1", now);
    EXPECT_TRUE(losses.may_return("m1", now));
  }
  for (const int wait : {1, 2, 4, 8, 16, 32, 60, 60}) {
    losses.note("m1", now);
    EXPECT_FALSE(losses.may_return("m1", now + seconds(wait) - milliseconds(1))) << wait;
    EXPECT_TRUE(losses.may_return("m1", now + seconds(wait))) << wait;
    EXPECT_TRUE(losses.may_return("m2", now));
    now += seconds(1);
  }
  EXPECT_TRUE(losses.may_return("m1", now + minutes(11)));
}

}  // namespace
}  // namespace stormo::protocol
