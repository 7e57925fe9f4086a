// What an acceptor grants, and what a proposer makes of the answers.
#include <gtest/gtest.h>

#include <array>
#include <initializer_list>

#include <stormo/protocol/register/acceptor.h>
#include <stormo/protocol/register/proposer.h>

namespace stormo::protocol {
namespace {

using Kind = RegisterRequest::Kind;
using Ended = RegisterOutcome::Kind;

class RegisterTest : public testing::Test {
 protected:
  /// Brings the request to these acceptors, and their answers back.
  void exchange(Proposer& proposer, std::initializer_list<int> acceptors) {
    for (const int a : acceptors) (void)proposer.receive(a, answer(a, proposer.request()));
  }
  RegisterReply answer(int acceptor, const RegisterRequest& request) {
    AcceptorState& state = states[static_cast<std::size_t>(acceptor)];
    const AcceptorDecision decision = decide(state, request);
    state = decision.next;
    ++messages;
    return decision.reply;
  }
  /// To these acceptors, until the outcome.
  RegisterOutcome finish(Proposer& proposer, std::initializer_list<int> acceptors) {
    for (int i = 0; i < 20 && !proposer.outcome(); ++i) {
      if (proposer.is_contested()) proposer.restart();
      const RegisterRequest request = proposer.request();
      for (const int a : acceptors) (void)proposer.receive(a, answer(a, request));
    }
    return proposer.outcome().value_or(RegisterOutcome{.kind = Ended::kUnknown});
  }
  std::string read(std::initializer_list<int> acceptors) {
    Proposer reader(++readers, 3);
    reader.read();
    const RegisterOutcome out = finish(reader, acceptors);
    return std::to_string(out.value.version) + "=" + out.value.bytes;
  }

  std::array<AcceptorState, 3> states{};
  int messages = 0;
  std::uint64_t readers = 100;
  Proposer one{1, 3}, two{2, 3};
};

TEST_F(RegisterTest, AnEmptyRegisterHasVersionZero) { EXPECT_EQ(read({0, 1}), "0="); }

TEST_F(RegisterTest, AChangeTakesThreeExchangesWithAMajority) {
  one.change(0, "a");
  exchange(one, {0, 1});
  EXPECT_EQ(one.request().kind, Kind::kPrepare);
  exchange(one, {0, 1});
  EXPECT_EQ(one.request().kind, Kind::kAccept);
  EXPECT_FALSE(one.outcome());
  exchange(one, {0});
  EXPECT_FALSE(one.outcome()) << "one of three is no majority";
  exchange(one, {1});
  ASSERT_TRUE(one.outcome());
  EXPECT_EQ(one.outcome()->kind, Ended::kChanged);
  EXPECT_EQ(one.outcome()->value.version, 1U);
  EXPECT_EQ(read({1, 2}), "1=a");
}

TEST_F(RegisterTest, AReadOfASettledRegisterAsksOnceAndChangesNothing) {
  one.change(0, "a");
  (void)finish(one, {0, 1, 2});
  const auto before = states;
  messages = 0;
  EXPECT_EQ(read({0, 2}), "1=a");
  EXPECT_EQ(messages, 2);
  EXPECT_EQ(states, before);
}

TEST_F(RegisterTest, AMismatchSaysWhatIsThere) {
  one.change(0, "a");
  (void)finish(one, {0, 1});
  two.change(0, "b");
  const RegisterOutcome out = finish(two, {0, 1});
  EXPECT_EQ(out.kind, Ended::kMismatch);
  EXPECT_EQ(out.value.bytes, "a");
  two.change(1, "b");
  EXPECT_EQ(finish(two, {1, 2}).kind, Ended::kChanged);
  EXPECT_EQ(read({0, 2}), "2=b");
}

TEST_F(RegisterTest, WhatAMinorityHasIsFinishedByWhoFindsIt) {
  one.change(0, "a");
  exchange(one, {0, 1});
  exchange(one, {0, 1});
  exchange(one, {0});  // only one acceptor has the value
  EXPECT_TRUE(one.has_proposed());
  EXPECT_EQ(read({0, 2}), "1=a");
  EXPECT_EQ(read({1, 2}), "1=a") << "what was read stays";
}

TEST_F(RegisterTest, OrReplacedByWhoDoesNot) {
  one.change(0, "a");
  exchange(one, {0, 1});
  exchange(one, {0, 1});
  exchange(one, {0});
  two.change(0, "b");
  EXPECT_EQ(finish(two, {1, 2}).kind, Ended::kChanged);
  const RegisterOutcome out = finish(one, {0, 1});
  EXPECT_EQ(out.kind, Ended::kMismatch) << "its change never takes place";
  EXPECT_EQ(out.value.bytes, "b");
}

TEST_F(RegisterTest, AChangeThatAnotherOneFinishesIsDone) {
  one.change(0, "a");
  exchange(one, {0, 1});
  exchange(one, {0, 1});
  const RegisterRequest accept = one.request();
  (void)answer(0, accept);  // the answer is lost
  EXPECT_EQ(read({0, 2}), "1=a");
  exchange(one, {1});
  EXPECT_FALSE(one.outcome());
  (void)one.receive(2, answer(2, accept));
  EXPECT_TRUE(one.is_contested());
  EXPECT_EQ(finish(one, {1, 2}).kind, Ended::kChanged);
}

TEST_F(RegisterTest, AChangeThatIsHiddenByLaterOnesIsUnknown) {
  one.change(0, "a");
  exchange(one, {0, 1});
  exchange(one, {0, 1});
  (void)answer(0, one.request());
  two.change(1, "b");
  (void)finish(two, {0, 2});  // finds the first change, which is version 1, and follows it
  EXPECT_EQ(read({1, 2}), "2=b");
  one.restart();
  EXPECT_EQ(finish(one, {1, 2}).kind, Ended::kUnknown);
}

TEST_F(RegisterTest, ARefusedProposerTakesAHigherBallot) {
  one.change(0, "a");
  two.change(0, "b");
  exchange(one, {0, 1});
  exchange(two, {0, 1});
  exchange(two, {0, 1});  // has the promise of both
  exchange(one, {0});
  EXPECT_TRUE(one.is_contested());
  EXPECT_EQ(finish(one, {0, 1}).kind, Ended::kChanged);
  const Ballot of_one = states[0].accepted;
  exchange(two, {0, 1});
  EXPECT_TRUE(two.is_contested());
  EXPECT_EQ(finish(two, {0, 1}).kind, Ended::kMismatch);
  EXPECT_EQ(states[0].accepted, of_one);
}

TEST_F(RegisterTest, AnAnswerCountsOnceAndForItsRequestOnly) {
  one.read();
  const RegisterReply first = answer(0, one.request());
  EXPECT_FALSE(one.receive(0, first));
  EXPECT_FALSE(one.receive(0, first));
  EXPECT_FALSE(one.outcome());
  one.read();
  EXPECT_FALSE(one.receive(0, first));
  EXPECT_TRUE(one.awaits(0)) << "an answer to the read before";
}

TEST(Acceptor, GrantsTheSameRequestAgain) {
  const RegisterRequest prepare{.kind = Kind::kPrepare, .round = 7, .ballot = {3, 1}};
  AcceptorDecision d = decide({}, prepare);
  EXPECT_TRUE(d.reply.granted);
  EXPECT_EQ(d.reply.round, 7U);
  const AcceptorState promised = d.next;
  d = decide(promised, prepare);
  EXPECT_TRUE(d.reply.granted);
  EXPECT_EQ(d.next, promised) << "nothing to write";
}

TEST(Acceptor, RefusesOlderBallotsAndSaysWhy) {
  const AcceptorState state = decide({}, {.kind = Kind::kPrepare, .ballot = {3, 2}}).next;
  for (const Kind kind : {Kind::kPrepare, Kind::kAccept}) {
    const AcceptorDecision d = decide(state, {.kind = kind, .ballot = {3, 1}});
    EXPECT_FALSE(d.reply.granted);
    EXPECT_EQ(d.reply.state.promised, (Ballot{3, 2}));
    EXPECT_EQ(d.next, state);
  }
}

}  // namespace
}  // namespace stormo::protocol
