#include <gtest/gtest.h>

#include <stormo/membership/elastic_wire.h>

namespace stormo::protocol {
namespace {

using transport::encode;

template <class T>
Result<T> decoded(const T& value) {
  return transport::decode<T>(kElasticProtocol, encode(value));
}

const MemberStatus kStatus{
    .from = {"a/0", 3},
    .epoch = 7,
    .standing = Standing::kResting,
    .held = {.step = 10,
             .is_whole = true,
             .state_hash = 11,
             .gradient_hash = 12,
             .prepared_step = 11,
             .prepared_hash = 13},
    .progress = 14,
    .is_waiting = true,
    .leaves = true,
    .stop_after = 15,
    .heard = {{"b/0", 1}, {"b/1", 2}},
    .dead = {{"c/0", 9}},
    .plan_hash = 16,
    .address = "10.0.0.1:4000",
    .shares = 2,
    .wish = {.epoch = 8, .members = {{.id = {"a/0", 3}, .address = "10.0.0.1:4000"}}, .group = 4},
    .ready_group = 3};

const RecordNews kNews{{.epoch = 8,
                        .members = {{.id = {"a/0", 3}, .address = "10.0.0.1:4000", .shares = 2},
                                    {.id = {"b/0", 1}, .address = "10.0.0.2:4000"}},
                        .base_step = 10,
                        .state_hash = 11,
                        .plan_hash = 16,
                        .donors = {"b/0"},
                        .group = 5}};

TEST(ElasticWire, MessagesAreTheSameAfterTheyWereSent) {
  const auto news = decoded(ElasticMessage(kNews));
  ASSERT_TRUE(news.ok()) << news.status().to_string();
  EXPECT_EQ(std::get<RecordNews>(*news).record, kNews.record);

  const auto message = decoded(ElasticMessage(kStatus));
  ASSERT_TRUE(message.ok()) << message.status().to_string();
  const auto& status = std::get<MemberStatus>(*message);
  EXPECT_EQ(status.from, kStatus.from);
  EXPECT_EQ(status.epoch, kStatus.epoch);
  EXPECT_EQ(status.standing, kStatus.standing);
  EXPECT_EQ(status.held, kStatus.held);
  EXPECT_EQ(status.progress, kStatus.progress);
  EXPECT_EQ(status.is_waiting, kStatus.is_waiting);
  EXPECT_EQ(status.leaves, kStatus.leaves);
  EXPECT_EQ(status.stop_after, kStatus.stop_after);
  EXPECT_EQ(status.heard, kStatus.heard);
  EXPECT_EQ(status.dead, kStatus.dead);
  EXPECT_EQ(status.plan_hash, kStatus.plan_hash);
  EXPECT_EQ(status.address, kStatus.address);
  EXPECT_EQ(status.shares, kStatus.shares);
  EXPECT_EQ(status.wish, kStatus.wish);
  EXPECT_EQ(status.ready_group, kStatus.ready_group);
}

/// A message that `change` has made wrong.
template <class T>
Code refusal(T message, void (*change)(T&)) {
  change(message);
  return decoded(ElasticMessage(message)).status().code();
}

TEST(ElasticWire, WhatNobodySendsIsRefused) {
  using Status = MemberStatus;
  for (const auto change :
       {+[](Status& s) { s.from.identity.clear(); },
        +[](Status& s) { s.from.identity.assign(257, 'a'); },
        +[](Status& s) { s.standing = Standing{0}; }, +[](Status& s) { s.standing = Standing{5}; },
        +[](Status& s) { s.heard[1].identity.clear(); },
        +[](Status& s) {
          s.dead.assign(16385, {"c", 1});
        },
        +[](Status& s) { s.address.assign(257, 'a'); }, +[](Status& s) { s.shares = 0; },
        +[](Status& s) { s.wish.members.clear(); }}) {
    EXPECT_EQ(refusal<Status>(kStatus, change), Code::kCorrupt);
  }
  for (const auto change : {+[](RecordNews& n) { n.record.epoch = 0; },
                            +[](RecordNews& n) { n.record.members.clear(); },
                            +[](RecordNews& n) {
                              n.record.members[1].id = {"a/0", 1};
                            },
                            +[](RecordNews& n) { n.record.members[1].shares = 0; },
                            +[](RecordNews& n) { n.record.members[0].address.clear(); },
                            +[](RecordNews& n) { n.record.donors = {"d/0"}; }}) {
    EXPECT_EQ(refusal<RecordNews>(kNews, change), Code::kCorrupt);
  }
  for (const ElasticMessage& message : {ElasticMessage(kStatus), ElasticMessage(kNews)}) {
    std::string bytes = encode(message);
    EXPECT_FALSE(transport::decode<ElasticMessage>(kElasticProtocol, bytes + '\0').ok());
    for (std::size_t length = 0; length < bytes.size(); ++length) {
      EXPECT_FALSE(
          transport::decode<ElasticMessage>(kElasticProtocol, bytes.substr(0, length)).ok());
    }
    bytes[0] = 2;
    EXPECT_FALSE(transport::decode<ElasticMessage>(kElasticProtocol, bytes).ok()) << "no such kind";
  }
}

TEST(ElasticRecord, IsARecordOfTheRegisterWithoutTheJob) {
  const membership::EpochRecord record = membership::epoch_record_of(kNews.record, "digits");
  EXPECT_EQ(record, (membership::EpochRecord{
                        .job = "digits",
                        .epoch = 8,
                        .members = {{"a/0", 3, "10.0.0.1:4000", 2}, {"b/0", 1, "10.0.0.2:4000", 1}},
                        .base_step = 10,
                        .state_hash = 11,
                        .plan_hash = 16,
                        .donors = {"b/0"},
                        .group = 5}));
  EXPECT_EQ(membership::elastic_record_of(record), kNews.record);
}

}  // namespace
}  // namespace stormo::protocol
