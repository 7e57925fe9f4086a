#include <gtest/gtest.h>

#include <stormo/membership/acceptor/register_wire.h>

namespace stormo::protocol {
namespace {

using Kind = RegisterRequest::Kind;
using transport::encode;

template <class T>
Result<T> decoded(const T& value) {
  return transport::decode<T>(kRegisterProtocol, encode(value));
}

const RegisterValue kValue{
    .version = 4, .origin = {.counter = 6, .proposer = 9}, .bytes = "record"};

TEST(RegisterWire, RequestsAndAnswersAreTheSameAfterTheyWereSent) {
  for (const RegisterRequest& request :
       {RegisterRequest{.kind = Kind::kAsk, .round = 1},
        RegisterRequest{.kind = Kind::kPrepare, .round = 2, .ballot = {7, 9}},
        RegisterRequest{.kind = Kind::kAccept, .round = 3, .ballot = {7, 9}, .value = kValue}}) {
    const auto copy = decoded(request);
    ASSERT_TRUE(copy.ok()) << copy.status().to_string();
    EXPECT_EQ(*copy, request);
  }
  const RegisterReply reply{.round = 3,
                            .granted = true,
                            .state = {.promised = {8, 1}, .accepted = {7, 9}, .value = kValue}};
  const auto copy = decoded(reply);
  ASSERT_TRUE(copy.ok()) << copy.status().to_string();
  EXPECT_EQ(*copy, reply);
  EXPECT_TRUE(decoded(RegisterReply{}).ok()) << "of an acceptor that has nothing yet";
}

TEST(RegisterWire, WhatNobodySendsIsRefused) {
  for (const RegisterRequest& request :
       {RegisterRequest{.kind = Kind{4}, .ballot = {7, 9}}, RegisterRequest{.kind = Kind::kPrepare},
        RegisterRequest{.kind = Kind::kAsk, .ballot = {7, 9}},
        RegisterRequest{.kind = Kind::kAccept, .ballot = {7, 9}},
        RegisterRequest{.kind = Kind::kPrepare, .ballot = {7, 9}, .value = kValue},
        RegisterRequest{.kind = Kind::kPrepare, .ballot = {kMaxCounter + 1, 9}}}) {
    EXPECT_EQ(decoded(request).status().code(), Code::kCorrupt);
  }
  RegisterRequest large{.kind = Kind::kAccept, .ballot = {7, 9}, .value = kValue};
  large.value.bytes.resize(kMaxValueBytes + 1);
  EXPECT_EQ(decoded(large).status().code(), Code::kCorrupt);
  for (const AcceptorState& state :
       {AcceptorState{.promised = {1, 1}, .accepted = {2, 1}, .value = kValue},
        AcceptorState{.promised = {1, 1}, .accepted = {1, 1}},
        AcceptorState{.promised = {1, 1}, .value = kValue}}) {
    EXPECT_EQ(decoded(state).status().code(), Code::kCorrupt);
  }
}

}  // namespace
}  // namespace stormo::protocol
