#include <gmock/gmock.h>
#include <poll.h>
#include <sys/socket.h>

#include <map>
#include <optional>
#include <thread>

#include <stormo/membership/elastic_wire.h>
#include <stormo/membership/member_connection.h>
#include <stormo/transport/call/frame_connection.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/gate.h>

#include "tests/unit/membership/linked_member.h"

namespace stormo::membership::test {
namespace {

using protocol::ElasticMessage;
using protocol::MemberId;
using protocol::MemberStatus;
using protocol::RecordNews;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using transport::FrameConnection;
using transport::Secret;

const MemberId kA{"a", 1}, kB{"b", 1}, kC{"c", 1};

/// A member that is made by hand, and does what it is told.
class HandMade {
 public:
  explicit HandMade(const Secret& secret) : secret_(secret) { listen(); }

  transport::HostPort address() const { return address_; }
  /// Opens a connection.
  void dial(const transport::HostPort& to) {
    transport::Hello hello;
    hello.purpose = transport::Purpose::kMember;
    transport::Dialer dialer({transport::resolve(to).take_or_throw(), secret_, hello});
    while (!dialer.step(std::chrono::steady_clock::now())) wait(dialer.fd(), dialer.poll_events());
    use(dialer.take().take_or_throw());
  }
  /// Waits for one.
  void accept() {
    for (;;) {
      auto visitors = gate_->step(std::chrono::steady_clock::now());
      if (!visitors.empty()) return use(std::move(visitors.front().socket));
      wait(gate_->poll_fd(), POLLIN);
    }
  }
  void send(std::string_view body) {
    frames_->send(body);
    EXPECT_TRUE(frames_->flush().ok());
  }
  /// The next frame; empty at the end of the connection.
  std::optional<std::string> receive() {
    for (;;) {
      if (const auto body = frames_->next(); body.ok() && *body) return std::string(**body);
      wait(frames_->fd(), POLLIN);
      if (!frames_->receive().ok()) return {};
    }
  }
  void reset() {
    const linger none{.l_onoff = 1, .l_linger = 0};
    ::setsockopt(frames_->fd(), SOL_SOCKET, SO_LINGER, &none, sizeof none);
    frames_.reset();
  }
  /// As the kernel of a process that ends: without a last word of TLS.
  void end() {
    ::shutdown(frames_->fd(), SHUT_WR);
    frames_.reset();
  }
  void stop_listening() { gate_.reset(); }

 private:
  void listen() {
    transport::Gate::Options options;
    address_ = transport::Gate::listen(options, {"127.0.0.1", 0}, {}).take_or_throw();
    options.secret = secret_;
    options.purpose = transport::Purpose::kMember;
    gate_ = transport::Gate::open(std::move(options)).take_or_throw();
  }
  void use(transport::Channel socket) {
    frames_.emplace(std::move(socket),
                    transport::FrameSplitter(protocol::kElasticProtocol, kMaxElasticBytes));
  }
  static void wait(int fd, short events) {
    pollfd p{fd, events, 0};
    (void)::poll(&p, 1, 1000);
  }

  Secret secret_;
  transport::HostPort address_;
  std::unique_ptr<transport::Gate> gate_;
  std::optional<FrameConnection> frames_;
};

TEST(MemberLinksTest, EachOfThreeReachesTheOthersAndItsMessagesKeepTheirOrder) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret), b(kB, secret), c(kC, secret);
  for (LinkedMember* m : {&a, &b, &c}) m->links().set_peers({a.entry(), b.entry(), c.entry()});
  for (std::uint64_t i = 1; i <= 100; ++i) {
    for (LinkedMember* m : {&a, &b, &c}) {
      for (const char* to : {"a", "b", "c"}) {
        m->links().send(to, m->status(i));
      }
    }
  }
  for (LinkedMember* m : {&a, &b, &c}) {
    for (const MemberId& from : {kA, kB, kC}) {
      EXPECT_TRUE(from == m->entry().id || m->hears(from, 100)) << from.identity;
    }
    std::map<std::string, std::uint64_t> last;
    for (const ElasticMessage& message : m->messages()) {
      const auto& status = std::get<MemberStatus>(message);
      EXPECT_LT(std::exchange(last[status.from.identity], status.progress), status.progress);
    }
    EXPECT_EQ(last.size(), 2U) << "and none from itself";
    EXPECT_THAT(m->ended(), IsEmpty());
  }
}

TEST(MemberLinksTest, WhoIsNotListedIsAnsweredOverItsOwnConnection) {
  const Secret secret = Secret::random();
  LinkedMember member(kA, secret), newcomer(kB, secret);
  newcomer.links().set_peers({member.entry()});
  newcomer.links().send("a", newcomer.status(1));
  ASSERT_TRUE(member.hears(kB, 1));
  member.links().send("b", member.status(2));
  EXPECT_TRUE(newcomer.hears(kA, 2));
}

TEST(MemberLinksTest, WhoLeavesInOrderIsNotTakenForDead) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  auto b = std::make_unique<LinkedMember>(kB, secret);
  a.links().set_peers({b->entry()});
  b->links().set_peers({a.entry()});
  a.links().send("b", a.status(1));
  b->links().send("a", b->status(1));
  ASSERT_TRUE(a.hears(kB, 1));
  ASSERT_TRUE(b->hears(kA, 1));
  b.reset();
  // its turns are now attempts to connect, which are refused
  ASSERT_TRUE(a.takes_turns(10));
  EXPECT_THAT(a.ended(), IsEmpty());
}

TEST(MemberLinksTest, ANewIncarnationIsReachedAtItsOwnAddress) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret), b(kB, secret), again({"b", 2}, secret);
  a.links().set_peers({b.entry()});
  a.links().send("b", a.status(1));
  ASSERT_TRUE(b.hears(kA, 1));
  a.links().set_peers({again.entry()});
  a.links().send("b", a.status(2));
  EXPECT_TRUE(again.hears(kA, 2));
  b.look();
  EXPECT_EQ(b.messages().size(), 1U);
  EXPECT_THAT(b.ended(), IsEmpty()) << "it was told that only its connection ends";
  EXPECT_THAT(a.ended(), IsEmpty());
}

TEST(MemberLinksTest, ANewIncarnationAtTheSameAddressIsReached) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  auto b = std::make_unique<LinkedMember>(kB, secret);
  const protocol::ElasticEntry old = b->entry();
  a.links().set_peers({old});
  a.links().send("b", a.status(1));
  ASSERT_TRUE(b->hears(kA, 1));
  b.reset();
  LinkedMember again({"b", 2}, secret, *transport::parse_host_port(old.address));
  // a has not been told yet that there is another one
  ASSERT_TRUE(a.takes_turns(1));
  a.links().send("b", a.status(2));
  EXPECT_TRUE(again.hears(kA, 2));
}

TEST(MemberLinksTest, ADifferentMemberAtTheAddressGetsNothing) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret), c(kC, secret);
  protocol::ElasticEntry wrong = c.entry();
  wrong.id = kB;
  a.links().set_peers({wrong});
  a.links().send("b", a.status(1));
  EXPECT_TRUE(a.notes("no connection to b at " + wrong.address +
                      ": c (start 1) is there, not start 1 of b"));
  c.look();
  EXPECT_THAT(c.messages(), IsEmpty());
  EXPECT_THAT(c.ended(), IsEmpty());
}

TEST(MemberLinksTest, AnAddressThatIsNoneIsNamed) {
  LinkedMember a(kA, Secret::random());
  a.links().set_peers({{.id = kB, .address = "10.0.0.1:port"}});
  EXPECT_TRUE(a.notes("no connection to b at 10.0.0.1:port: "));
}

TEST(MemberLinksTest, WithoutTheSecretNobodyIsHeard) {
  LinkedMember a(kA, Secret::random()), stranger(kB, Secret::random());
  stranger.links().set_peers({a.entry()});
  stranger.links().send("a", stranger.status(1));
  EXPECT_TRUE(a.notes("wrong secret"));
  EXPECT_THAT(a.messages(), IsEmpty());
  EXPECT_FALSE(MemberLinks::start({.me = kA,
                                   .address = {.host = "127.0.0.1", .port = 0},
                                   .ports = {},
                                   .secret = {},
                                   .on_message = {},
                                   .on_ended = {},
                                   .on_tick = {},
                                   .on_event = {}})
                   .ok());
}

TEST(MemberLinksTest, AnyThreadSends) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret), b(kB, secret), c(kC, secret);
  for (LinkedMember* m : {&a, &b, &c}) m->links().set_peers({a.entry(), b.entry(), c.entry()});
  constexpr std::uint64_t kMessages = 200;
  {
    std::vector<std::jthread> threads;
    for (std::uint64_t t = 0; t < 3; ++t) {
      threads.emplace_back([&] {
        for (std::uint64_t i = 1; i <= kMessages; ++i) {
          a.links().send(i % 2 == 0 ? "b" : "c", a.status(i));
          a.links().wake();
          if (i % 50 == 0) a.links().set_peers({b.entry(), c.entry()});
        }
      });
    }
  }
  a.links().send("b", a.status(kMessages + 1));
  a.links().send("c", a.status(kMessages + 1));
  EXPECT_TRUE(b.hears(kA, kMessages + 1));
  EXPECT_TRUE(c.hears(kA, kMessages + 1));
}

TEST(MemberLinksTest, WhatNoMemberSendsIsRefusedInOrder) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  HandMade b(secret);
  b.dial(a.links().address());
  b.send(transport::encode(kB));
  b.send("not a message");
  EXPECT_TRUE(a.notes("members protocol: malformed"));
  EXPECT_EQ(b.receive(), transport::encode(kA));
  EXPECT_EQ(b.receive(), transport::encode(std::optional<ElasticMessage>())) << "goodbye";
  EXPECT_EQ(b.receive(), std::nullopt);
}

TEST(MemberLinksTest, MessagesKeepToOneConnectionUntilItIsOver) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  HandMade dialling(secret), listening(secret);  // both are b
  dialling.dial(a.links().address());
  dialling.send(transport::encode(kB));
  dialling.send(encode_message(MemberStatus{.from = kB, .progress = 1}));
  ASSERT_TRUE(a.hears(kB, 1));
  a.links().send("b", a.status(1));
  a.links().set_peers({{.id = kB, .address = transport::to_string(listening.address())}});
  listening.accept();
  listening.send(transport::encode(kB));
  listening.send(encode_message(MemberStatus{.from = kB, .progress = 2}));
  EXPECT_EQ(listening.receive(), transport::encode(kA));
  ASSERT_TRUE(a.hears(kB, 2));
  a.links().send("b", a.status(2));
  EXPECT_EQ(dialling.receive(), transport::encode(kA));
  EXPECT_EQ(dialling.receive(), encode_message(a.status(1)));
  EXPECT_EQ(dialling.receive(), encode_message(a.status(2)));
  dialling.send(transport::encode(std::optional<ElasticMessage>()));
  dialling.end();
  a.look();
  a.links().send("b", a.status(3));
  EXPECT_EQ(listening.receive(), encode_message(a.status(3)));
  EXPECT_THAT(a.ended(), IsEmpty());
}

TEST(MemberLinksTest, AnEndWithoutGoodbyeIsThatOfTheProcess) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  HandMade b(secret), nobody(secret);
  nobody.dial(a.links().address());
  nobody.end();  // it has not said who it is
  b.dial(a.links().address());
  b.send(transport::encode(kB));
  b.send(encode_message(MemberStatus{.from = kB, .progress = 1}));
  EXPECT_EQ(b.receive(), transport::encode(kA));  // else its kernel would reset the connection
  b.end();
  EXPECT_TRUE(a.hears_end_of(kB));
  EXPECT_TRUE(a.hears(kB, 1)) << "its last words";
  EXPECT_EQ(a.ended().size(), 1U);
}

TEST(MemberLinksTest, AResetIsAnEndOnlyIfNobodyListensAnyMore) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  HandMade b(secret);
  a.links().set_peers({{.id = kB, .address = transport::to_string(b.address())}});
  for (std::uint64_t i = 1; i <= 3; ++i) {
    b.accept();
    b.send(transport::encode(kB));
    b.send(encode_message(MemberStatus{.from = kB, .progress = i}));
    ASSERT_TRUE(a.hears(kB, i));
    EXPECT_THAT(a.ended(), IsEmpty());
    if (i == 3) b.stop_listening();
    b.reset();
  }
  EXPECT_TRUE(a.hears_end_of(kB));
}

TEST(MemberLinksTest, OneThatDoesNotReadCostsOneMessageOfEachKind) {
  const Secret secret = Secret::random();
  LinkedMember a(kA, secret);
  HandMade b(secret);
  b.dial(a.links().address());
  b.send(transport::encode(kB));
  b.send(encode_message(MemberStatus{.from = kB, .progress = 1}));
  ASSERT_TRUE(a.hears(kB, 1));
  RecordNews news;
  for (int i = 0; i < 2000; ++i) {
    news.record.members.push_back(
        {.id = {std::to_string(i) + std::string(250, 'x'), 1}, .address = "10.0.0.1:1"});
  }
  constexpr Epoch kEpochs = 20;  // 11 MB
  for (news.record.epoch = 1; news.record.epoch <= kEpochs; ++news.record.epoch) {
    a.links().send("b", news);
    a.links().send("b", a.status(news.record.epoch));
  }
  EXPECT_EQ(b.receive(), transport::encode(kA));
  Epoch got = 0, last = 0;
  for (bool is_done = false; !is_done;) {
    const auto body = b.receive();
    ASSERT_TRUE(body.has_value());
    const auto message = transport::decode<std::optional<ElasticMessage>>("", *body);
    ASSERT_TRUE(message.ok() && message->has_value()) << message.status().to_string();
    if (const auto* status = std::get_if<MemberStatus>(&**message)) {
      is_done = status->progress == kEpochs;
    } else {
      last = std::get<RecordNews>(**message).record.epoch;
      ++got;
    }
  }
  EXPECT_EQ(last, kEpochs);
  EXPECT_LT(got, kEpochs) << "some were replaced";
}

}  // namespace
}  // namespace stormo::membership::test
