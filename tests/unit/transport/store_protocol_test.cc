#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/base/clock.h>
#include <stormo/base/rng.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/reply.h>
#include <stormo/transport/store/store_protocol.h>

#include <string>
#include <vector>

namespace stormo::transport {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using namespace std::chrono_literals;

StoreRequest request(StoreOp op, std::uint32_t id, std::string_view key = {},
                     std::string_view value = {}, std::int64_t number = 0) {
  return {op, id, number, key, value};
}

/// "1: reply 5 ok abc" for every delivery since the last call.
std::vector<std::string> deliveries(StoreState& state) {
  std::vector<std::string> out;
  for (const auto& d : state.take_deliveries()) {
    const std::string frame = d.frame();
    const auto reply =
        decode<Reply>(kStoreProtocol, std::string_view(frame).substr(kFrameLengthBytes));
    EXPECT_TRUE(reply.ok());
    out.push_back(std::to_string(d.to) + ": reply " + std::to_string(reply->id) + " " +
                  std::string(to_string(reply->code)) + " " + std::string(reply->body));
  }
  return out;
}

class StoreRules : public ::testing::Test {
 protected:
  void SetUp() override {
    for (StoreState::SessionId s : {1, 2, 3}) state.open(s, clock.now());
  }
  Status tell(StoreState::SessionId s, const StoreRequest& r) {
    return state.receive(s, r, clock.now());
  }
  ManualClock clock;
  StoreState state;
};

TEST_F(StoreRules, GetsAreAnsweredInTheOrderInWhichTheyWaited) {
  ASSERT_TRUE(tell(1, request(StoreOp::kGet, 10, "k")).ok());
  ASSERT_TRUE(tell(2, request(StoreOp::kGet, 20, "k")).ok());
  EXPECT_THAT(deliveries(state), IsEmpty());
  ASSERT_TRUE(tell(3, request(StoreOp::kSet, 30, "k", "v")).ok());
  EXPECT_THAT(deliveries(state),
              ElementsAre("1: reply 10 ok v", "2: reply 20 ok v", "3: reply 30 ok "));
  ASSERT_TRUE(tell(3, request(StoreOp::kSet, 31, "k", "w")).ok());
  EXPECT_THAT(deliveries(state), ElementsAre("3: reply 31 ok ")) << "a get is answered once";
}

TEST_F(StoreRules, ACancelledGetIsForgotten) {
  ASSERT_TRUE(tell(1, request(StoreOp::kGet, 10, "k")).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kGet, 11, "k")).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kCancel, 10)).ok());
  ASSERT_TRUE(state.set("k", "v").ok());
  EXPECT_THAT(deliveries(state), ElementsAre("1: reply 11 ok v"));
}

TEST_F(StoreRules, WhatIsAppendedComesAfterWhatWasThere) {
  ASSERT_TRUE(tell(1, request(StoreOp::kAppend, 10, "k", "a")).ok());
  ASSERT_TRUE(tell(2, request(StoreOp::kAppend, 20, "k", "b")).ok());
  EXPECT_THAT(deliveries(state), ElementsAre("1: reply 10 ok a", "2: reply 20 ok ab"));
  const std::string big(kMaxValueBytes, 'x');
  ASSERT_TRUE(tell(3, request(StoreOp::kAppend, 30, "k", big)).ok());
  EXPECT_THAT(deliveries(state), ElementsAre(HasSubstr("3: reply 30 invalid argument")));
  EXPECT_EQ(state.get("k"), "ab");
}

TEST_F(StoreRules, SilenceIsJudgedByTheManualClock) {
  ASSERT_TRUE(tell(1, request(StoreOp::kWill, 1, "failure", "rank 0", Duration(5s).count())).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kBeat, 0, {}, "step 12, all_reduce #40")).ok());
  EXPECT_EQ(state.wake_at(), clock.now() + 5s + Duration(1));
  for (int i = 0; i < 25; ++i) {
    state.tick(clock.now());
    clock.advance(200ms);
  }
  state.tick(clock.now());
  EXPECT_EQ(state.get("failure"), std::nullopt) << "exactly as long as promised";
  clock.advance(200ms);
  state.tick(clock.now());
  EXPECT_EQ(state.get("failure"),
            "rank 0; silent for 5.2 s; last reported: step 12, all_reduce #40");
  EXPECT_EQ(state.wake_at(), TimePoint::max()) << "a will is executed once";
}

TEST_F(StoreRules, ThePauseOfTheServerItselfIsHeldAgainstNobody) {
  ASSERT_TRUE(tell(1, request(StoreOp::kWill, 1, "failure", "rank 0", Duration(2s).count())).ok());
  state.tick(clock.now());
  clock.advance(60s);  // the server's process was stopped
  state.tick(clock.now());
  EXPECT_EQ(state.get("failure"), std::nullopt);
  for (int i = 0; i < 11; ++i) {
    clock.advance(200ms);
    state.tick(clock.now());
  }
  EXPECT_THAT(state.get("failure").value_or(""), HasSubstr("silent for 2.2 s"));
}

TEST_F(StoreRules, AProcessThatRunsIsNotJudged) {
  ASSERT_TRUE(tell(1, request(StoreOp::kWill, 1, "failure", "rank 0", Duration(2s).count())).ok());
  bool runs = true;
  int looks = 0;
  const auto look = [&](StoreState::SessionId id) {
    EXPECT_EQ(id, 1u);
    ++looks;
    return runs;
  };
  for (int i = 0; i < 30; ++i) {  // 6 s
    clock.advance(200ms);
    state.tick(clock.now(), look);
  }
  EXPECT_EQ(state.get("failure"), std::nullopt);
  EXPECT_GE(looks, 8) << "it is looked at again";
  EXPECT_LE(looks, 20) << "not with each tick";
  runs = false;
  clock.advance(400ms);
  state.tick(clock.now(), look);
  EXPECT_EQ(state.get("failure"), "rank 0; silent for 6.4 s");
}

// On another host nobody sees whether it runs: late beats announce later ones.
TEST_F(StoreRules, BeatsThatCameLateAllowMoreSilence) {
  const auto seconds_until_judged = [&](Duration late, int beats_after) {
    const std::string key = "failure" + std::to_string(late.count()) + std::to_string(beats_after);
    EXPECT_TRUE(tell(1, request(StoreOp::kWill, 1, key, "rank 0", Duration(2s).count())).ok());
    EXPECT_TRUE(tell(1, request(StoreOp::kBeat, 0, {}, {}, late.count())).ok());
    for (int i = 0; i < beats_after; ++i) EXPECT_TRUE(tell(1, request(StoreOp::kBeat, 0)).ok());
    int tenths = 0;
    for (; !state.get(key) && tenths < 100; ++tenths) {
      clock.advance(100ms);
      state.tick(clock.now());
    }
    return tenths / 10.0;
  };
  EXPECT_DOUBLE_EQ(seconds_until_judged(0s, 0), 2.1);
  EXPECT_DOUBLE_EQ(seconds_until_judged(1s, 0), 3.1);
  EXPECT_DOUBLE_EQ(seconds_until_judged(-1s, 10), 2.1) << "nobody may say so";
  EXPECT_DOUBLE_EQ(seconds_until_judged(1000s, 0), 4.1) << "at most as much again";
  EXPECT_DOUBLE_EQ(seconds_until_judged(1s, 20), 2.1) << "long ago";
}

TEST_F(StoreRules, ABeatIsAnsweredIfItHasAnId) {
  ASSERT_TRUE(tell(1, request(StoreOp::kBeat, 0, {}, "step 1")).ok());
  EXPECT_THAT(deliveries(state), IsEmpty()) << "that of a client which does not ask";
  ASSERT_TRUE(tell(1, request(StoreOp::kBeat, 7, {}, "step 2")).ok());
  EXPECT_THAT(deliveries(state), ElementsAre("1: reply 7 ok "));
}

TEST_F(StoreRules, ZeroSilenceIsNeverJudged) {
  ASSERT_TRUE(tell(1, request(StoreOp::kWill, 1, "failure", "rank 0", 0)).ok());
  for (int i = 0; i < 100; ++i) {
    clock.advance(900ms);
    state.tick(clock.now());
  }
  EXPECT_EQ(state.get("failure"), std::nullopt);
  state.close(1, clock.now());
  EXPECT_EQ(state.get("failure"), "rank 0; connection closed");
}

TEST_F(StoreRules, AWillNeverOverwritesTheFirstCause) {
  ASSERT_TRUE(tell(1, request(StoreOp::kWill, 1, "failure", "second", 0)).ok());
  ASSERT_TRUE(state.set("failure", "first").ok());
  state.close(1, clock.now());
  EXPECT_EQ(state.get("failure"), "first");
}

TEST_F(StoreRules, AClosedSessionGetsNothingMore) {
  ASSERT_TRUE(tell(1, request(StoreOp::kGet, 10, "k")).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kWatch, 11, "k")).ok());
  ASSERT_TRUE(tell(2, request(StoreOp::kWatch, 21, "k")).ok());
  state.close(1, clock.now());
  ASSERT_TRUE(state.set("k", "v").ok());
  EXPECT_THAT(deliveries(state), ElementsAre("2: reply 21 ok v"));
  EXPECT_EQ(state.num_sessions(), 2u);
}

TEST_F(StoreRules, TheNumberOfKeysIsBounded) {
  for (std::size_t i = 0; i < StoreState::kMaxKeys; ++i) {
    ASSERT_TRUE(state.set("k" + std::to_string(i), "").ok());
  }
  EXPECT_EQ(state.set("one more", "").code(), Code::kExhausted);
  EXPECT_TRUE(state.set("k0", "changed").ok());
}

TEST_F(StoreRules, TheTotalOfBytesIsBoundedAndReused) {
  const std::string big(kMaxValueBytes, 'x');
  Status last;
  int fits = 0;
  while ((last = state.set("k" + std::to_string(fits), big)).ok()) ++fits;
  EXPECT_EQ(last.code(), Code::kExhausted);
  EXPECT_EQ(fits, static_cast<int>(StoreState::kMaxTotalBytes / kMaxValueBytes) - 1);
  ASSERT_TRUE(state.set("k0", "small").ok());
  EXPECT_TRUE(state.set("other", big).ok());
  EXPECT_FALSE(state.set("one more", big).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kErase, 1, "k1")).ok());
  EXPECT_TRUE(state.set("one more", big).ok());
}

TEST_F(StoreRules, AnErasedKeyIsAbsentAndNoLongerCounts) {
  for (std::size_t i = 0; i <= StoreState::kMaxKeys; ++i) {
    const std::string key = "k" + std::to_string(i);
    ASSERT_TRUE(state.set(key, "").ok());
    ASSERT_TRUE(tell(1, request(StoreOp::kErase, 1, key)).ok());
    ASSERT_FALSE(state.get(key).has_value());
  }
  EXPECT_TRUE(tell(1, request(StoreOp::kErase, 2, "never set")).ok());
}

TEST_F(StoreRules, AKeyIsErasedOnlyIfItHasTheValueThatIsMeant) {
  ASSERT_TRUE(state.set("k", "theirs").ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kEraseIf, 1, "k", "mine")).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kEraseIf, 2, "never set", "mine")).ok());
  EXPECT_EQ(state.get("k"), "theirs");
  ASSERT_TRUE(tell(1, request(StoreOp::kEraseIf, 3, "k", "theirs")).ok());
  EXPECT_EQ(state.get("k"), std::nullopt);
  EXPECT_THAT(deliveries(state), ElementsAre("1: reply 1 ok ", "1: reply 2 ok ", "1: reply 3 ok "));
}

TEST_F(StoreRules, AGetOfAnErasedKeyWaitsAndAWatchStays) {
  ASSERT_TRUE(tell(1, request(StoreOp::kSet, 10, "k", "old")).ok());
  ASSERT_TRUE(tell(2, request(StoreOp::kWatch, 20, "k")).ok());
  ASSERT_TRUE(tell(1, request(StoreOp::kErase, 11, "k")).ok());
  ASSERT_TRUE(tell(3, request(StoreOp::kGet, 30, "k")).ok());
  EXPECT_THAT(deliveries(state),
              ElementsAre("1: reply 10 ok ", "2: reply 20 ok old", "1: reply 11 ok "));
  ASSERT_TRUE(tell(1, request(StoreOp::kSet, 12, "k", "new")).ok());
  EXPECT_THAT(deliveries(state),
              ElementsAre("3: reply 30 ok new", "2: reply 20 ok new", "1: reply 12 ok "));
}

TEST_F(StoreRules, WhatOneSessionSetsIsBoundedAndLeavesRoomForOthers) {
  const std::string big(kMaxValueBytes, 'x');
  std::size_t fits = 0;
  const auto set = [&](StoreState::SessionId s, const std::string& key, std::string_view value) {
    EXPECT_TRUE(tell(s, request(StoreOp::kSet, 7, key, value)).ok());
    return deliveries(state).back();
  };
  while (set(1, "k" + std::to_string(fits), big) == "1: reply 7 ok ") ++fits;
  EXPECT_EQ(fits, StoreState::kMaxSessionBytes / kMaxValueBytes - 1);
  EXPECT_THAT(set(1, "more", big), HasSubstr("exhausted"));
  EXPECT_EQ(set(1, "k0", big), "1: reply 7 ok ") << "a value in another's place";
  EXPECT_EQ(set(2, "other", big), "2: reply 7 ok ");
  EXPECT_EQ(set(2, "k0", "small"), "2: reply 7 ok ") << "who sets it last pays for it";
  EXPECT_EQ(set(1, "more", big), "1: reply 7 ok ");
}

TEST_F(StoreRules, WillsCountAsMuchAsValues) {
  const auto answer = [&](StoreOp op, const std::string& key, std::string_view value) {
    EXPECT_TRUE(tell(1, request(op, 7, key, value)).ok());
    return deliveries(state).back();
  };
  const std::string ok = "1: reply 7 ok ";
  const std::string big(kMaxValueBytes, 'x');
  for (std::size_t i = 1; i < StoreState::kMaxSessionBytes / kMaxValueBytes; ++i) {
    ASSERT_EQ(answer(StoreOp::kSet, "k" + std::to_string(i), big), ok);
  }
  const std::string will(kMaxWillBytes, 'x');
  for (int i = 0; i < 3; ++i) {  // in each other's place
    ASSERT_EQ(answer(StoreOp::kWill, "failure", will), ok);
  }
  const std::string small(8192, 'x');
  EXPECT_THAT(answer(StoreOp::kSet, "small", small), HasSubstr("exhausted"));
  ASSERT_EQ(answer(StoreOp::kGoodbye, "", ""), ok);
  EXPECT_EQ(answer(StoreOp::kSet, "small", small), ok) << "the will is gone";
  EXPECT_THAT(answer(StoreOp::kWill, "failure", will), HasSubstr("exhausted"));
}

TEST_F(StoreRules, AValueOnItsWayToManyIsOneObject) {
  const std::string big(kMaxValueBytes, 'x');
  for (std::uint32_t i = 0; i < 100; ++i) {
    ASSERT_TRUE(tell(2, request(StoreOp::kWatch, i, "k")).ok());
  }
  ASSERT_TRUE(state.set("k", big).ok());
  EXPECT_EQ(state.bytes_on_their_way(), 0u) << "all of them are the stored one";
  auto first = state.take_deliveries();
  ASSERT_EQ(first.size(), 100u);
  ASSERT_TRUE(state.set("k", "small").ok());
  EXPECT_EQ(state.bytes_on_their_way(), big.size());
  first.clear();
  EXPECT_EQ(state.bytes_on_their_way(), 0u);
}

TEST_F(StoreRules, TheWaitsOfAllSessionsAreBounded) {
  const std::string key(kMaxKeyBytes - 8, 'k');
  StoreState::SessionId session = 100;
  Status last;
  std::size_t waits = 0;
  for (; last.ok() && waits < StoreState::kMaxWaitBytes / key.size() + 1; ++session) {
    state.open(session, clock.now());
    for (std::uint32_t i = 0; i < StoreState::kMaxWaits && last.ok(); ++i) {
      last = tell(session, request(StoreOp::kGet, i, key + std::to_string(i)));
      if (last.ok()) ++waits;
    }
  }
  EXPECT_EQ(last.code(), Code::kExhausted);
  EXPECT_GT(waits, StoreState::kMaxWaitBytes / (kMaxKeyBytes + 64));
  EXPECT_LT(waits, StoreState::kMaxWaitBytes / key.size());
  state.close(100, clock.now());
  EXPECT_TRUE(tell(1, request(StoreOp::kGet, 1, key)).ok()) << "who leaves makes room";
}

TEST_F(StoreRules, TheWaitsOfASessionAreBounded) {
  for (std::uint32_t i = 0; i < StoreState::kMaxWaits; ++i) {
    ASSERT_TRUE(tell(1, request(StoreOp::kGet, i, "k")).ok());
  }
  EXPECT_EQ(tell(1, request(StoreOp::kGet, 99999, "k")).code(), Code::kExhausted);
  EXPECT_TRUE(tell(2, request(StoreOp::kGet, 1, "k")).ok());
}

TEST(StoreMessages, RoundTrip) {
  const std::vector<StoreRequest> requests = {
      request(StoreOp::kSet, 1, "key", "value"),
      request(StoreOp::kSetIfAbsent, 2, "k", std::string_view("\0x", 2)),
      request(StoreOp::kGet, 3, "k"),
      request(StoreOp::kCancel, 4),
      request(StoreOp::kWatch, 6, "k"),
      request(StoreOp::kWill, 7, "k", "v", 5),
      request(StoreOp::kBeat, 0, {}, "note"),
      request(StoreOp::kGoodbye, 9),
      request(StoreOp::kErase, 10, "k"),
      request(StoreOp::kEraseIf, 11, "k", "v")};
  for (const StoreRequest& r : requests) {
    const std::string bytes = encode(r);
    const auto decoded = decode<StoreRequest>(kStoreProtocol, bytes);
    ASSERT_TRUE(decoded.ok()) << decoded.status().to_string();
    EXPECT_EQ(*decoded, r);
    // Strict: nothing missing, nothing left over.
    for (const std::string& other : {bytes.substr(0, bytes.size() - 1), bytes + "x"}) {
      EXPECT_FALSE(decode<StoreRequest>(kStoreProtocol, other).ok());
    }
  }
}

TEST(StoreMessages, AnImpossibleLengthIsRefusedBeforeItsBytesCome) {
  FrameSplitter splitter{kStoreProtocol, kMaxStoreFrameBytes};
  splitter.append(std::string_view("\xff\xff\xff\xff", 4));
  EXPECT_EQ(splitter.next().status().code(), Code::kCorrupt);
  EXPECT_EQ(splitter.buffered(), 4u);
}

/// Streams of mutated requests through splitter, parser and state: the state stays within its
/// bounds and every broken stream ends as kCorrupt or kExhausted.
TEST(StoreMessages, SurviveRandomStreams) {
  Rng rng(2, "store fuzz");
  int executed = 0;
  int refused = 0;
  for (int stream = 0; stream < 5000; ++stream) {
    StoreState state;
    state.open(1, {});
    FrameSplitter splitter{kStoreProtocol, kMaxStoreFrameBytes};
    bool open = true;
    for (int i = 0; i < 10 && open; ++i) {
      const std::string key(rng.below(4), 'k');
      const std::string value(rng.below(20), 'v');
      const auto op = static_cast<StoreOp>(rng.below(13));
      std::string bytes = frame(encode(
          request(op, rng.next_u32(), key, value, static_cast<std::int64_t>(rng.below(100)) - 2)));
      if (rng.below(4) == 0) bytes[rng.below(bytes.size())] = static_cast<char>(rng.next_u32());
      if (rng.below(10) == 0) bytes.resize(rng.below(bytes.size() + 1));
      splitter.append(bytes);
      for (;;) {
        const auto body = splitter.next();
        const bool more = body.ok() && body->has_value();
        if (body.ok() && !more) break;
        const auto decoded = body.ok() ? decode<StoreRequest>(kStoreProtocol, **body)
                                       : Result<StoreRequest>(body.status());
        if (!decoded.ok() || !state.receive(1, *decoded, {}).ok()) {
          ++refused;
          open = false;
          break;
        }
        ++executed;
      }
    }
    state.tick(TimePoint(1s));
    state.close(1, TimePoint(2s));
    ASSERT_EQ(state.num_sessions(), 0u);
    ASSERT_LT(state.take_deliveries().size(), 40u);
  }
  EXPECT_GT(executed, 1000);
  EXPECT_GT(refused, 1000);
}

}  // namespace
}  // namespace stormo::transport
