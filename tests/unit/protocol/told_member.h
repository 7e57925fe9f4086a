#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include <gtest/gtest.h>

#include <stormo/protocol/elastic/elastic_member.h>

namespace stormo::protocol {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline MemberId member(int i, std::uint64_t incarnation = 1) {
  return {.identity = "m" + std::to_string(i), .incarnation = incarnation};
}

inline ElasticRecord first_record(int members) {
  ElasticRecord record{.epoch = 1, .state_hash = 5, .plan_hash = 9};
  for (int i = 0; i < members; ++i) {
    record.members.push_back({.id = member(i)});
    record.donors.push_back(member(i).identity);
  }
  return record;
}

/// One elastic member, told by hand what happens.
class ElasticMemberTest : public testing::Test {
 protected:
  explicit ElasticMemberTest(ElasticOptions options = {}) {
    options.me = member(0);
    options.plan_hash = 9;
    options.initial_hash = 5;
    options.global_batch = 6;
    it.emplace(options);
  }
  void tell(const ElasticInput& input, Duration later = milliseconds(1)) {
    actions = it->handle(input, now += later);
  }
  template <class T>
  std::optional<T> done() const {
    for (const ElasticAction& a : actions) {
      if (const T* const found = std::get_if<T>(&a)) return *found;
    }
    return {};
  }
  /// In epoch 1, in its first step.
  void begin(const ElasticRecord& record) {
    tell(ElasticTick{});
    EXPECT_TRUE(done<ReadRegister>());
    tell(RegisterAnswer{record});
    ASSERT_TRUE(done<StartGroup>());
    EXPECT_EQ(done<StartGroup>()->record, record);
    tell(GroupStarted{1});
    ASSERT_TRUE(done<RunStep>());
  }
  static MemberStatus resting(int i, Epoch epoch = 1) {
    return {.from = member(i),
            .epoch = epoch,
            .standing = Standing::kResting,
            .held = {.step = 0, .is_whole = true, .state_hash = 5},
            .heard = {member(0)}};
  }
  std::optional<ElasticMember> it;
  TimePoint now = TimePoint{} + seconds(10);
  std::vector<ElasticAction> actions;
};

}  // namespace stormo::protocol
