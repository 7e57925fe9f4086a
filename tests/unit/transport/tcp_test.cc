#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stormo/base/rng.h>
#include <stormo/transport/tcp/frame.h>
#include <stormo/transport/tcp/link.h>
#include <stormo/transport/tcp/send_times.h>
#include <stormo/transport/tcp/stripes.h>
#include <stormo/transport/tcp/tcp_transport.h>
#include <sys/socket.h>

#include <array>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

#include "tests/conformance/faulty.h"
#include "tests/conformance/tcp_fabric.h"

namespace stormo::transport {
namespace {

using ::testing::HasSubstr;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Deadline soon() { return Deadline::after(20s); }

FrameHeader sample_header() { return {5, 42, 0x77, 1000, true, 0x1234567890abcdef}; }

TEST(Frame, RoundTrips) {
  const auto decoded = decode_frame_header(encode(sample_header()));
  ASSERT_TRUE(decoded.ok());
  EXPECT_EQ(*decoded, sample_header());
}

TEST(Frame, EveryFlippedBitOfTheHeaderIsNoticed) {
  const FrameHeader expected{5, 42, 0x77, 1000, true};
  for (std::size_t bit = 0; bit < 8 * kFrameHeaderBytes; ++bit) {
    FrameBytes bytes = encode(sample_header());
    bytes[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    const auto decoded = decode_frame_header(bytes);
    const bool refused = !decoded.ok() || !check_frame(*decoded, expected).ok() ||
                         decoded->checksum != sample_header().checksum;
    EXPECT_TRUE(refused) << "bit " << bit;
  }
}

TEST(Frame, NamesBothValues) {
  const FrameHeader h = sample_header();
  const FrameHeader good{5, 42, 0x77, 1000, true};
  EXPECT_TRUE(check_frame(h, good).ok());
  const auto check = [&](auto change, Code code, const char* text) {
    FrameHeader e = good;
    change(e);
    EXPECT_EQ(check_frame(h, e).code(), code);
    EXPECT_THAT(check_frame(h, e).message(), HasSubstr(text));
  };
  check([](auto& e) { e.epoch = 6; }, Code::kCorrupt, "epoch 5, expected 6");
  check([](auto& e) { e.sequence = 41; }, Code::kCorrupt, "#42, expected #41");
  check([](auto& e) { e.tag = 0x78; }, Code::kMismatch, "0x77, expected 0x78");
  check([](auto& e) { e.length = 8; }, Code::kMismatch, "1000 bytes, expected 8");
  check([](auto& e) { e.has_checksum = false; }, Code::kMismatch, "checksums");
}

TEST(Frame, SurvivesRandomInput) {
  Rng rng(3, "frame fuzz");
  int accepted = 0;
  for (int i = 0; i < 100000; ++i) {
    FrameBytes bytes = encode(sample_header());
    for (auto n = rng.below(3); n > 0; --n) {
      bytes[rng.below(bytes.size())] = static_cast<std::byte>(rng.next_u32());
    }
    const auto decoded = decode_frame_header(bytes);
    if (!decoded.ok()) continue;
    ++accepted;
    ASSERT_LE(decoded->length, kMaxMessageBytes);
  }
  EXPECT_GT(accepted, 1000);
}

/// The receiving end of a link whose other end the test writes by hand.
struct RawLink {
  RawLink(Epoch epoch, bool checksum) {
    std::array<int, 2> fds{};
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM, 0, fds.data()), 0);
    raw = Descriptor(fds[0]);
    link = std::make_unique<Connection>(1, Channel(Descriptor(fds[1])), epoch, checksum);
  }
  void write(std::span<const std::byte> bytes) {
    ASSERT_EQ(::send(raw.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL),
              static_cast<ssize_t>(bytes.size()));
  }
  Descriptor raw;
  std::unique_ptr<Connection> link;
};

TEST(LinkReceive, AcceptsAMessageInAnyPieces) {
  const Bytes payload(1000, std::byte{7});
  FrameHeader h{5, 0, 0x77, payload.size(), true, checksum_of(payload)};
  const FrameBytes header = encode(h);
  Bytes stream(header.begin(), header.end());
  stream.insert(stream.end(), payload.begin(), payload.end());
  for (const std::size_t piece : {1, 47, 48, 49, 1048}) {
    RawLink pair(5, true);
    Bytes got(1000);
    pair.link->add(Incoming{1, 0x77, got});
    for (std::size_t at = 0; at < stream.size(); at += piece) {
      pair.write(std::span(stream).subspan(at, std::min(piece, stream.size() - at)));
      ASSERT_TRUE(pair.link->receive_some().ok());
      const auto idle = pair.link->receive_some();
      if (pair.link->receiving()) {
        EXPECT_FALSE(*idle) << "nothing new is not progress";
      }
    }
    EXPECT_FALSE(pair.link->receiving());
    EXPECT_EQ(got, payload);
  }
}

TEST(LinkReceive, FindsADamagedPayload) {
  const Bytes payload(1000, std::byte{7});
  FrameHeader h{5, 0, 0x77, payload.size(), true, checksum_of(payload)};
  for (const std::size_t bit : {0, 4001, 7999}) {
    RawLink pair(5, true);
    Bytes got(1000);
    pair.link->add(Incoming{1, 0x77, got});
    Bytes damaged = payload;
    damaged[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
    pair.write(encode(h));
    pair.write(damaged);
    const auto done = pair.link->receive_some();
    EXPECT_EQ(done.status().code(), Code::kCorrupt);
    EXPECT_THAT(done.status().message(), HasSubstr("receive #0 from rank 1"));
  }
}

TEST(LinkReceive, TellsAnEndOfTheConnectionInTheMiddleOfAMessage) {
  RawLink pair(5, false);
  Bytes got(1000);
  pair.link->add(Incoming{1, 0x77, got});
  pair.write(encode(FrameHeader{5, 0, 0x77, 1000, false, 0}));
  pair.write(Bytes(999));
  pair.raw.reset();
  const auto done = pair.link->receive_some();
  EXPECT_EQ(done.status().code(), Code::kPeerLost);
  EXPECT_THAT(done.status().message(), HasSubstr("rank 1"));
}

/// What has been told may be read, and comes from the beginning on.
class Heard final : public Progress {
 public:
  explicit Heard(const Bytes& expected, const Bytes& got) : expected_(expected), got_(got) {}
  void received(std::size_t bytes) override {
    EXPECT_GE(bytes, last);
    EXPECT_TRUE(std::equal(got_.begin(), got_.begin() + static_cast<std::ptrdiff_t>(bytes),
                           expected_.begin()));
    last = bytes;
  }
  std::size_t last = 0;

 private:
  const Bytes& expected_;
  const Bytes& got_;
};

TEST(Tcp, AMessageOverSeveralSocketsIsToldOfFromItsBeginning) {
  auto fabric = make_tcp_fabric(2, "127.0.0.1", {.sockets = 4});
  for (const std::size_t size : {Stripes::kLeastBytes - 1, Stripes::kLeastBytes, 3'000'001ul}) {
    Bytes sent(size), got(size);
    for (std::size_t i = 0; i < size; ++i) sent[i] = static_cast<std::byte>(i * 31 >> 3);
    auto sending =
        std::async(std::launch::async, [&] { return fabric[0]->send(1, 7, sent, soon()); });
    Heard heard(sent, got);
    const Incoming in{0, 7, got, &heard};
    EXPECT_TRUE(fabric[1]->exchange({}, {&in, 1}, soon()).ok());
    EXPECT_TRUE(sending.get().ok());
    EXPECT_EQ(got, sent);
    EXPECT_EQ(heard.last, size);
  }
  EXPECT_EQ(fabric[1]->counters().messages_received, 3u);
}

TEST(Tcp, ALostPeerIsNamed) {
  auto fabric = make_tcp_fabric(3, "127.0.0.1", false);
  Bytes data(8);
  auto waiting =
      std::async(std::launch::async, [&] { return fabric[0]->recv(2, 1, data, soon()); });
  fabric[2].reset();
  const Status got = waiting.get();
  EXPECT_EQ(got.code(), Code::kPeerLost);
  EXPECT_THAT(got.message(), HasSubstr("rank 2"));
}

TcpOptions two_ranks(Rank rank, const Secret& secret, std::string peer_address = {}) {
  TcpOptions o;
  o.rank = rank;
  o.size = 2;
  o.peers = {{1 - rank, std::move(peer_address)}};
  o.secret = secret;
  o.epoch = 1;
  return o;
}

TEST(Tcp, TheGroupsFailureEndsSetUpAndExchange) {
  const Status cause(Code::kPeerLost, "rank 1 on host b: silent for 5.2 s");
  auto health = std::make_shared<Health>();
  health->fail(cause);
  TcpOptions o = two_ranks(0, Secret::random());
  o.health = health;
  const auto made = connect_tcp(o, std::move(*TcpListener::listen("127.0.0.1", {})), soon());
  EXPECT_EQ(made.status(), cause);

  auto later = std::make_shared<Health>();
  const Secret secret = Secret::random();
  auto listener = std::move(*TcpListener::listen("127.0.0.1", {}));
  const std::string address = listener->address();
  auto peer = std::async(std::launch::async, [&] {
    return connect_tcp(two_ranks(1, secret, address), nullptr, soon());
  });
  TcpOptions mine = two_ranks(0, secret);
  mine.health = later;
  auto t = connect_tcp(mine, std::move(listener), soon());
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  const auto other = peer.get();
  ASSERT_TRUE(other.ok());
  Bytes data(8);
  auto waiting =
      std::async(std::launch::async, [&] { return t->transport->recv(1, 1, data, soon()); });
  later->fail(cause);
  EXPECT_EQ(waiting.get(), cause);
}

TEST(Tcp, SetUpNamesWhoIsMissing) {
  TcpOptions o = two_ranks(1, Secret::random(), "127.0.0.1:1");
  const auto made = connect_tcp(o, nullptr, Deadline::after(30ms));
  EXPECT_EQ(made.status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(made.status().message(), HasSubstr("rank 0 at 127.0.0.1:1"));
  TcpOptions low = two_ranks(0, Secret::random());
  const auto waits =
      connect_tcp(low, std::move(*TcpListener::listen("127.0.0.1", {})), Deadline::after(30ms));
  EXPECT_THAT(waits.status().message(), HasSubstr("rank 1 (has not connected)"));
}

TEST(Tcp, SetUpRefusesBadOptions) {
  const auto code = [](TcpOptions o) {
    return connect_tcp(std::move(o), nullptr, soon()).status().code();
  };
  const Secret secret = Secret::random();
  EXPECT_EQ(code(two_ranks(1, Secret(), "127.0.0.1:1")), Code::kInvalidArgument) << "no secret";
  EXPECT_EQ(code(two_ranks(1, secret, "nonsense:port")), Code::kInvalidArgument);
  TcpOptions self = two_ranks(1, secret, "127.0.0.1:1");
  self.peers[0].rank = 1;
  EXPECT_EQ(code(self), Code::kInvalidArgument);
}

TEST(Tcp, RanksOfAnotherEpochAreRefused) {
  const Secret secret = Secret::random();
  auto listener = std::move(*TcpListener::listen("127.0.0.1", {}));
  TcpOptions zombie = two_ranks(1, secret, listener->address());
  zombie.epoch = 0;
  std::promise<std::string> refused;
  std::once_flag first;  // of its connections
  TcpOptions mine = two_ranks(0, secret);
  mine.on_refused = [&](std::string_view line) {
    std::call_once(first, [&] { refused.set_value(std::string(line)); });
  };
  auto server = std::async(std::launch::async, [&] {
    return connect_tcp(mine, std::move(listener), Deadline::after(300ms));
  });
  const auto made = connect_tcp(zombie, nullptr, soon());
  EXPECT_EQ(made.status().code(), Code::kRefused);
  EXPECT_THAT(made.status().message(), HasSubstr("wrong epoch"));
  EXPECT_EQ(server.get().status().code(), Code::kDeadlineExceeded);
  EXPECT_THAT(refused.get_future().get(), HasSubstr("wrong epoch"));
}

// Both ends are in this process, and count together.
TEST(SendTimes, BulkDataIsMeasuredAndSmallMessagesAreNot) {
  auto fabric = make_tcp_fabric(2, "127.0.0.1", false);
  const auto swap = [&](std::size_t bytes) {
    const Bytes out(bytes);
    std::array<Bytes, 2> in{Bytes(bytes), Bytes(bytes)};
    auto other = std::async(std::launch::async, [&] {
      const Outgoing to{0, 5, out};
      const Incoming from{0, 5, in[1]};
      return fabric[1]->exchange({&to, 1}, {&from, 1}, soon());
    });
    const Outgoing to{1, 5, out};
    const Incoming from{1, 5, in[0]};
    EXPECT_TRUE(fabric[0]->exchange({&to, 1}, {&from, 1}, soon()).ok());
    EXPECT_TRUE(other.get().ok());
  };
  const BulkSent before = bulk_sent();
  swap(100);
  swap(100);
  EXPECT_EQ(bulk_sent().since(before).bytes, 0u);
  EXPECT_EQ(bulk_sent().since(before).seconds(), 0);
  constexpr std::size_t kBytes = 8 << 20;
  const TimePoint begin = std::chrono::steady_clock::now();
  swap(kBytes);
  swap(kBytes);
  swap(100);  // ends the measurement
  const BulkSent sent = bulk_sent().since(before);
  EXPECT_EQ(sent.bytes, 2 * 2 * kBytes);
  EXPECT_GT(sent.acknowledged, kBytes);
  EXPECT_LE(sent.acknowledged, 2 * 2 * (kBytes + 1000));
  EXPECT_LE(sent.under_way, 2 * (std::chrono::steady_clock::now() - begin) + 20ms);  // in 4 ms
}

TEST(SendTimes, SecondsAreThoseOfAllBytesAtTheRateOfThoseThatWereWatched) {
  const BulkSent before{.bytes = 10, .acknowledged = 5, .under_way = 1s};
  const BulkSent now{.bytes = 310, .acknowledged = 105, .under_way = 3s};
  EXPECT_DOUBLE_EQ(now.since(before).seconds(), 6);
  EXPECT_EQ((BulkSent{.bytes = 10, .under_way = 1s}.seconds()), 0);
}

TEST(Faulty, ADroppedMessageBecomesADeadline) {
  auto fabric = make_tcp_fabric(2, "127.0.0.1", false);
  FaultPlan plan;
  plan.drop_message = 1;
  auto sender = make_faulty(std::move(fabric[0]), plan);
  const Bytes data(8, std::byte{1});
  for (int i = 0; i < 3; ++i) ASSERT_TRUE(sender->send(1, 4, data, soon()).ok());
  Bytes got(8);
  EXPECT_TRUE(fabric[1]->recv(0, 4, got, soon()).ok());
  EXPECT_EQ(fabric[1]->recv(0, 4, got, Deadline::after(30ms)).code(), Code::kDeadlineExceeded);
  EXPECT_EQ(sender->faults().dropped_messages, 2u) << "a stream has no holes";
}

TEST(Faulty, ACutLooksLikeADeath) {
  auto fabric = make_tcp_fabric(2, "127.0.0.1", false);
  FaultPlan plan;
  plan.cut_before_message = 2;
  auto sender = make_faulty(std::move(fabric[0]), plan);
  const Bytes data(8);
  ASSERT_TRUE(sender->send(1, 4, data, soon()).ok());
  ASSERT_TRUE(sender->send(1, 4, data, soon()).ok());
  EXPECT_EQ(sender->send(1, 4, data, soon()).code(), Code::kPeerLost);
  EXPECT_EQ(sender->send(1, 4, data, soon()).code(), Code::kPeerLost);
  Bytes got(8);
  EXPECT_TRUE(fabric[1]->recv(0, 4, got, soon()).ok());
  EXPECT_TRUE(fabric[1]->recv(0, 4, got, soon()).ok());
  EXPECT_EQ(fabric[1]->recv(0, 4, got, soon()).code(), Code::kPeerLost);
  EXPECT_EQ(sender->faults().cuts, 1u);
  EXPECT_EQ(sender->counters().messages_sent, 2u);
}

TEST(Faulty, ACorruptMessageDiffersInOneBit) {
  auto fabric = make_tcp_fabric(2, "127.0.0.1", true);
  FaultPlan plan;
  plan.seed = 9;
  plan.corrupt_message = 0;
  auto sender = make_faulty(std::move(fabric[0]), plan);
  const Bytes data(1000, std::byte{0});
  Bytes got(1000);
  ASSERT_TRUE(sender->send(1, 4, data, soon()).ok());
  ASSERT_TRUE(fabric[1]->recv(0, 4, got, soon()).ok());
  int bits = 0;
  for (const std::byte b : got) bits += std::popcount(std::to_integer<unsigned>(b));
  EXPECT_EQ(bits, 1);
  EXPECT_EQ(sender->faults().corrupted_messages, 1u);
}

TEST(Faulty, FailEndsADelay) {
  auto fabric = make_tcp_fabric(2, "127.0.0.1", false);
  FaultPlan plan;
  plan.delay_probability = 1;
  plan.max_delay = 1h;
  auto late = make_faulty(std::move(fabric[0]), plan);
  const Status cause(Code::kCancelled, "enough");
  const Bytes data(8);
  auto waiting = std::async(std::launch::async, [&] { return late->send(1, 4, data, soon()); });
  late->fail(cause);
  EXPECT_EQ(waiting.get(), cause);
  EXPECT_EQ(late->faults().delays, 1u);
}

}  // namespace
}  // namespace stormo::transport
