// The register in virtual time: whatever is lost, cut or crashes, its calls have an order; and once
// nothing fails any more, each comes to its end. Each fault that is built in is found.
#include <gtest/gtest.h>

#include <optional>

#include "tests/unit/protocol/register_world.h"

namespace stormo::protocol::test {
namespace {

using Result = stormo::test::RegisterCall::Result;
constexpr int kSteps = 1000;

struct Seen {
  std::size_t calls = 0, changed = 0, mismatches = 0, open = 0, crashes = 0, lost_writes = 0;
};

Seen explore(std::uint64_t seeds, const RegisterWorld::Options& options) {
  Seen seen;
  for (std::uint64_t seed = 0; seed < seeds && !testing::Test::HasFailure(); ++seed) {
    SCOPED_TRACE(seed);
    RegisterWorld world(seed, options);
    world.run(kSteps);
    EXPECT_TRUE(world.come_to_rest().has_value()) << "somebody waits for ever";
    EXPECT_EQ(world.history().check(), "");
    seen.calls += world.history().size();
    seen.changed += world.history().count(Result::kChanged);
    seen.mismatches += world.history().count(Result::kMismatch);
    seen.open += world.history().count(Result::kOpen);
    seen.crashes += world.crashes();
    seen.lost_writes += world.lost_writes();
  }
  return seen;
}

TEST(RegisterModel, WhateverFailsTheCallsHaveAnOrder) {
  constexpr std::uint64_t kSeeds = 1500;
  const Seen seen = explore(kSeeds, {});
  // all of it happens
  EXPECT_GT(seen.calls, 10 * kSeeds);
  EXPECT_GT(seen.changed, 2 * kSeeds);
  EXPECT_GT(seen.mismatches, kSeeds / 2);
  EXPECT_GT(seen.open, kSeeds / 2);
  EXPECT_GT(seen.crashes, kSeeds);
  EXPECT_GT(seen.lost_writes, kSeeds / 10);
}

TEST(RegisterModel, AlsoWithOneAcceptor) { explore(300, {.acceptors = 1}); }
TEST(RegisterModel, AlsoWithFive) { explore(300, {.acceptors = 5, .clients = 4}); }

/// The first seed under which the history shows what is wrong.
std::optional<std::uint64_t> caught_by(const Wrong& wrong, std::uint64_t seeds = 3000) {
  for (std::uint64_t seed = 0; seed < seeds; ++seed) {
    RegisterWorld world(seed, {.wrong = wrong});
    world.run(kSteps);
    (void)world.come_to_rest();
    if (!world.history().check().empty()) return seed;
  }
  return {};
}

/// Requests of one kind are granted, whatever the acceptor has promised.
Wrong forgetful(RegisterRequest::Kind kind) {
  return {.acceptor = [kind](AcceptorState state, const RegisterRequest& request) {
    if (request.kind == kind) state.promised = {};
    return decide(state, request);
  }};
}

TEST(RegisterMutation, AcceptsAnOldBallot) {
  EXPECT_TRUE(caught_by(forgetful(RegisterRequest::Kind::kAccept)));
}

TEST(RegisterMutation, VotesTwice) {
  EXPECT_TRUE(caught_by(forgetful(RegisterRequest::Kind::kPrepare)));
}

TEST(RegisterMutation, ForgetsThePromiseAfterARestart) {
  EXPECT_TRUE(caught_by({.on_restart = [](AcceptorState& s) { s.promised = s.accepted; }}));
}

TEST(RegisterMutation, ForgetsEverythingAfterARestart) {
  EXPECT_TRUE(caught_by({.on_restart = [](AcceptorState& s) { s = {}; }}));
}

TEST(RegisterMutation, AnswersBeforeTheSync) {
  EXPECT_TRUE(caught_by({.answers_before_sync = true}));
}

TEST(RegisterMutation, WritesWithoutAMajority) {
  EXPECT_TRUE(caught_by({.one_counts_as_all = RegisterRequest::Kind::kAccept}));
}

TEST(RegisterMutation, PreparesWithoutAMajority) {
  EXPECT_TRUE(caught_by({.one_counts_as_all = RegisterRequest::Kind::kPrepare}));
}

TEST(RegisterMutation, LearnsFromAMinority) {
  EXPECT_TRUE(caught_by({.one_counts_as_all = RegisterRequest::Kind::kAsk}));
}

TEST(RegisterMutation, KeepsTheOldValueWithANewBallot) {
  EXPECT_TRUE(
      caught_by({.acceptor = [](const AcceptorState& state, const RegisterRequest& request) {
        AcceptorDecision out = decide(state, request);
        const bool prepares = request.kind == RegisterRequest::Kind::kPrepare && out.reply.granted;
        // it says that what it has is of the new attempt
        if (prepares && state.accepted != Ballot{}) out.next.accepted = request.ballot;
        out.reply.state = out.next;
        return out;
      }}));
}

TEST(RegisterMutation, LosesTheOriginOfAValue) {
  EXPECT_TRUE(caught_by({.acceptor = [](const AcceptorState& state, RegisterRequest request) {
    request.value.origin = {};
    return decide(state, request);
  }}));
}

}  // namespace
}  // namespace stormo::protocol::test
