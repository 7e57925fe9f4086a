#include <stormo/transport/call/fields.h>

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <stormo/transport/call/frame.h>
#include <stormo/transport/call/loop_thread.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <atomic>

namespace stormo::transport {
namespace {

enum class Colour : std::uint8_t { kRed = 1, kBlue = 2 };
struct Inner {
  std::int16_t number = 0;
  bool operator==(const Inner&) const = default;
};
struct Outer {
  Colour colour = Colour::kRed;
  bool is_set = false;
  double real = 0;
  std::string text = {};
  std::vector<Inner> list = {};
  std::array<std::uint8_t, 2> two = {};
  std::optional<std::int32_t> maybe = {};
  std::pair<std::string, std::string> both = {};
  Duration time{};
  bool operator==(const Outer&) const = default;
};
void fields(auto& visit, Like<Inner> auto& inner) { visit("inner", inner.number); }
void fields(auto& visit, Like<Outer> auto& o) {
  visit("outer", within(o.colour, Colour::kRed, Colour::kBlue), o.is_set, o.real,
        at_most(3, o.text), at_most(2, o.list), o.two, o.maybe, o.both, o.time);
  visit.require(o.text != "no", "the text says no");
}

const Outer kExample{.colour = Colour::kBlue,
                     .is_set = true,
                     .real = -0.5,
                     .text = std::string("a\0b", 3),
                     .list = {{-1}, {2}},
                     .two = {3, 4},
                     .maybe = 5,
                     .both = {"x", ""},
                     .time = Duration(6)};

std::string refusal(const std::string& bytes) {
  return decode<Outer>("test", bytes).status().message();
}

TEST(Fields, HaveOneFormInBothDirections) {
  const std::string bytes = encode(kExample);
  // enum, bool, double, length and text, count and list, array, flag and value, two texts, time
  EXPECT_EQ(bytes.size(), 1u + 1 + 8 + (4 + 3) + (4 + 2 * 2) + 2 + (1 + 4) + (4 + 1 + 4) + 8);
  EXPECT_EQ(bytes.substr(0, 2), "\2\1");
  EXPECT_EQ(*decode<Outer>("test", bytes), kExample);
  EXPECT_EQ(*decode<Outer>("test", encode(Outer{})), Outer{});
  for (std::size_t n = 0; n < bytes.size(); ++n) {
    EXPECT_EQ(refusal(bytes.substr(0, n)), "test protocol: malformed outer") << n;
  }
  EXPECT_EQ(refusal(bytes + "x"), "test protocol: malformed outer");
}

TEST(Fields, OutOfBoundsAreRefusedWithTheReason) {
  const auto changed = [](auto change) {
    Outer other = kExample;
    change(other);
    return refusal(encode(other));
  };
  EXPECT_EQ(changed([](Outer& o) { o.colour = Colour{3}; }),
            "test protocol: malformed outer: 3 is not one of 1 to 2");
  EXPECT_EQ(changed([](Outer& o) { o.text = "four"; }), "test protocol: malformed outer");
  EXPECT_EQ(changed([](Outer& o) { o.list.resize(3); }), "test protocol: malformed outer");
  EXPECT_EQ(changed([](Outer& o) { o.text = "no"; }),
            "test protocol: malformed outer: the text says no");
  std::string bytes = encode(kExample);
  bytes[1] = 2;
  EXPECT_EQ(refusal(bytes), "test protocol: malformed outer: 2 is not one of 0 to 1");
}

TEST(FrameReceiver, LeavesWhatFollowsAFrame) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  Channel here{Descriptor(ends[0])}, there{Descriptor(ends[1])};
  const auto send = [&](std::string_view bytes) {
    ASSERT_EQ(::send(there.fd(), bytes.data(), bytes.size(), 0), std::ssize(bytes));
  };
  FrameReceiver frames("test", 10);
  const std::string first = frame("first");
  send(first.substr(0, 6));
  EXPECT_EQ(*frames.receive(here), std::nullopt);
  send(first.substr(6) + frame("") + "payload" + begin_of_frame("", 11));
  EXPECT_EQ(*frames.receive(here), "first");
  EXPECT_EQ(*frames.receive(here), "");
  std::array<char, 7> payload{};
  ASSERT_EQ(::recv(here.fd(), payload.data(), payload.size(), 0), std::ssize(payload));
  EXPECT_EQ(std::string_view(payload.data(), payload.size()), "payload");
  EXPECT_EQ(frames.receive(here).status().message(),
            "test protocol: frame of 11 B, at most 10 are allowed");
}

// More than a socket takes at once, and more ranges than a system call.
TEST(ByteRanges, FollowTheirFrameAndAreSentAgainFromTheFirstByte) {
  std::array<int, 2> ends{};
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends.data()), 0);
  Channel here{Descriptor(ends[0])}, there{Descriptor(ends[1])};
  std::string data(1 << 20, '\0'), arrived(data.size(), '\0');
  for (std::size_t i = 0; i < data.size(); ++i) data[i] = static_cast<char>(i % 251);
  ByteRanges out, in;
  out.set_head("head");
  for (std::size_t i = 0; i < data.size(); i += 4096) out.add(data.data() + i, 4096);
  in.add(arrived.data(), arrived.size());
  for (int round = 0; round < 2; ++round) {
    FrameReceiver frames("test", 10);
    ASSERT_TRUE(*out.send(there));
    EXPECT_FALSE(out.done());
    EXPECT_EQ(*frames.receive(here), "head");
    while (!in.done()) {
      ASSERT_TRUE(out.send(there).ok());
      ASSERT_TRUE(in.receive(here).ok());
    }
    EXPECT_TRUE(out.done());
    EXPECT_EQ(in.moved(), data.size());
    EXPECT_EQ(out.moved(), data.size() + frame("head").size());
    EXPECT_EQ(arrived, data);
    out.rewind();
    in.rewind();
    std::ranges::fill(arrived, '\0');
  }
}

TEST(LoopThread, AWakeBeforeTheWaitCountsAndStopEndsIt) {
  std::atomic<int> turns = 0;
  LoopThread loop;
  ASSERT_TRUE(loop.status().ok());
  loop.wake();
  loop.start([&] {
    ++turns;
    turns.notify_all();
    (void)loop.wait(-1, 0, TimePoint::max(), 60'000);
  });
  turns.wait(0);
  turns.wait(1);
  EXPECT_EQ(turns, 2) << "the second one waits";
  loop.stop();
  EXPECT_EQ(turns, 2);
}

}  // namespace
}  // namespace stormo::transport
