#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stormo/base/rng.h>
#include <stormo/transport/net/channel.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/gate.h>
#include <stormo/transport/net/tls_setting.h>
#include <stormo/transport/net/tls_stream.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

namespace stormo::transport {
namespace {

using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;
using namespace std::chrono_literals;
using Role = TlsStream::Role;

constexpr std::size_t kHead = 5;  // of a record

TlsStream::Key key_of(int fill) {
  TlsStream::Key key;
  key.fill(static_cast<std::byte>(fill));
  return key;
}

std::array<Descriptor, 2> socket_pair() {
  std::array<int, 2> ends{};
  EXPECT_EQ(::socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends.data()), 0);
  return {Descriptor(ends[0]), Descriptor(ends[1])};
}

std::string pattern(std::size_t bytes, int seed = 0) {
  std::string text(bytes, '\0');
  Rng rng(static_cast<std::uint64_t>(seed), "tls test");
  for (char& c : text) c = static_cast<char>(rng.next_u32());
  return text;
}

ssize_t send(TlsStream& to, std::string_view text) {
  const iovec all{const_cast<char*>(text.data()), text.size()};
  return to.send({&all, 1});
}

/// What one receive() gives, at most `room` bytes; nothing when there is nothing now.
std::optional<std::string> receive(TlsStream& from, std::size_t room = TlsStream::kReadAhead) {
  std::string text(room, '\0');
  const iovec all{text.data(), text.size()};
  const ssize_t n = from.receive({&all, 1});
  if (n < 0) {
    EXPECT_EQ(errno, EAGAIN);
    return {};
  }
  text.resize(static_cast<std::size_t>(n));
  return text;
}

int receive_error(TlsStream& from) {
  std::array<char, 64> room{};
  const iovec all{room.data(), room.size()};
  return from.receive({&all, 1}) < 0 ? errno : 0;
}

/// A client and a server; all that they send passes through carry().
class Line {
 public:
  enum Way { kToServer = 0, kToClient = 1 };

  explicit Line(int client_key = 1, int server_key = 1) {
    auto [left, from_left] = socket_pair();
    auto [from_right, right] = socket_pair();
    client_socket = std::move(left);
    server_socket = std::move(right);
    middle_ = {std::move(from_left), std::move(from_right)};
    client = std::make_unique<TlsStream>(client_socket.get(), Role::kClient, key_of(client_key));
    server = std::make_unique<TlsStream>(server_socket.get(), Role::kServer, key_of(server_key));
  }

  /// Moves what waits in the middle; true if there was anything.
  bool carry() {
    bool moved = false;
    for (const Way way : {kToServer, kToClient}) {
      std::string buffer(64 << 10, '\0');
      const auto from = static_cast<std::size_t>(way);
      const ssize_t n = ::recv(middle_[from].get(), buffer.data(), buffer.size(), MSG_DONTWAIT);
      if (n <= 0) continue;
      waiting_[from] += buffer.substr(0, static_cast<std::size_t>(n));
      moved = true;
    }
    for (const Way way : {kToServer, kToClient}) {
      std::string& bytes = waiting_[static_cast<std::size_t>(way)];
      if (change && !bytes.empty()) change(way, bytes);
      const int to = middle_[static_cast<std::size_t>(1 - way)].get();
      const ssize_t n = ::send(to, bytes.data(), bytes.size(), MSG_NOSIGNAL | MSG_DONTWAIT);
      if (n <= 0) continue;
      seen[static_cast<std::size_t>(way)] += bytes.substr(0, static_cast<std::size_t>(n));
      bytes.erase(0, static_cast<std::size_t>(n));
      moved = true;
    }
    return moved;
  }
  /// Until both ends are done, or nothing moves any more.
  std::array<Status, 2> shake_hands() {
    std::array<Status, 2> outcomes;
    std::array<bool, 2> done{};
    do {
      for (const std::size_t end : {0u, 1u}) {
        TlsStream& stream = end == 0 ? *client : *server;
        if (done[end] || !outcomes[end].ok()) continue;
        const Result<bool> step = stream.shake_hands();
        if (!step.ok()) outcomes[end] = step.status();
        done[end] = step.ok() && *step;
      }
    } while (carry());
    is_open = done[0] && done[1];
    return outcomes;
  }
  void cut(Way way) { ::shutdown(middle_[static_cast<std::size_t>(1 - way)].get(), SHUT_WR); }

  Descriptor client_socket, server_socket;
  std::unique_ptr<TlsStream> client, server;
  std::array<std::string, 2> seen;  ///< all bytes that went each way
  std::function<void(Way, std::string&)> change;
  bool is_open = false;

 private:
  std::array<Descriptor, 2> middle_;
  std::array<std::string, 2> waiting_;
};

class OpenLine : public ::testing::Test {
 protected:
  void SetUp() override {
    (void)line.shake_hands();
    ASSERT_TRUE(line.is_open);
    line.seen = {};
  }
  Line line;
};

TEST(Tls, WhoHasAnotherKeyGetsNoConnection) {
  Line line(1, 2);
  const auto [client, server] = line.shake_hands();
  EXPECT_FALSE(line.is_open);
  EXPECT_EQ(server.code(), Code::kRefused);
  EXPECT_EQ(client.code(), Code::kRefused);
  EXPECT_THAT(server.message(), HasSubstr("TLS handshake: "));
}

TEST(Tls, WhoSpeaksPlainTextIsRefused) {
  for (const Role role : {Role::kClient, Role::kServer}) {
    auto [own, other] = socket_pair();
    TlsStream stream(own.get(), role, key_of(1));
    const std::string words = "GET / HTTP/1.1\r\nHost: somewhere\r\n\r\n" + std::string(512, 'x');
    ASSERT_EQ(::send(other.get(), words.data(), words.size(), 0), std::ssize(words));
    Result<bool> done = stream.shake_hands();
    if (done.ok()) done = stream.shake_hands();
    EXPECT_EQ(done.status().code(), Code::kRefused);
  }
}

TEST(Tls, AnEndInTheHandshakeIsReported) {
  auto [own, other] = socket_pair();
  TlsStream stream(own.get(), Role::kClient, key_of(1));
  ASSERT_FALSE(stream.shake_hands().take_or_throw());  // the peer is silent
  other.reset();
  EXPECT_EQ(stream.shake_hands().status().message(),
            "the peer closed the connection during the TLS handshake");
}

TEST(Tls, EveryChangedByteOfTheHandshakeIsNoticed) {
  std::array<std::size_t, 2> lengths{};
  {
    Line whole;
    (void)whole.shake_hands();
    ASSERT_TRUE(whole.is_open);
    lengths = {whole.seen[0].size(), whole.seen[1].size()};
  }
  for (const Line::Way way : {Line::kToServer, Line::kToClient}) {
    for (std::size_t at = 0; at < lengths[static_cast<std::size_t>(way)]; ++at) {
      Line line;
      line.change = [&](Line::Way going, std::string& bytes) {
        const std::size_t gone = line.seen[static_cast<std::size_t>(way)].size();
        if (going == way && at >= gone && at - gone < bytes.size()) bytes[at - gone] ^= 0x40;
      };
      (void)line.shake_hands();
      if (!line.is_open) continue;
      // the byte of a record that nobody looks at (a version): it says nothing
      EXPECT_EQ(send(*line.client, "hello"), 5);
      while (line.carry()) {
      }
      EXPECT_EQ(receive(*line.server), "hello");
    }
  }
}

TEST_F(OpenLine, CarriesEverySizeBothWays) {
  for (const std::size_t bytes : {1u, 2u, 31u, 16383u, 16384u, 16385u, 40009u}) {
    for (const bool to_server : {true, false}) {
      TlsStream& from = to_server ? *line.client : *line.server;
      TlsStream& to = to_server ? *line.server : *line.client;
      const std::string text = pattern(bytes);
      std::string arrived;
      for (std::size_t sent = 0; arrived.size() < bytes;) {
        const ssize_t n = sent < bytes ? send(from, text.substr(sent)) : 0;
        if (n > 0) sent += static_cast<std::size_t>(n);
        line.carry();
        while (const auto part = receive(to, 1000)) arrived += *part;
      }
      EXPECT_EQ(arrived, text) << bytes;
    }
  }
  EXPECT_EQ(receive(*line.client), std::nullopt);
}

/// What leaves is what is documented, and none of it is what was sent.
TEST_F(OpenLine, TakesTwentyTwoBytesMoreForEachRecordAndShowsNothing) {
  const std::string canary = "canary in a coal mine";
  std::string text = pattern(100'000);
  text.replace(50'000, canary.size(), canary);
  std::string arrived;
  for (std::size_t sent = 0; arrived.size() < text.size();) {
    const ssize_t n = sent < text.size() ? send(*line.client, text.substr(sent)) : 0;
    if (n > 0) sent += static_cast<std::size_t>(n);
    line.carry();
    while (const auto part = receive(*line.server)) arrived += *part;
  }
  EXPECT_EQ(arrived, text);
  const std::size_t records = text.size() / TlsStream::kRecordBytes + 1;
  EXPECT_EQ(line.seen[0].size(), text.size() + records * TlsStream::kRecordOverhead);
  EXPECT_THAT(line.seen[0], Not(HasSubstr(canary)));
  EXPECT_THAT(line.seen[1], IsEmpty());
}

TEST_F(OpenLine, SmallPartsShareARecord) {
  std::array<std::string, 5> texts{"a", "", "head", pattern(3000), "tail"};
  std::array<iovec, 5> parts{};
  std::string all;
  for (std::size_t i = 0; i < texts.size(); ++i) {
    parts[i] = {texts[i].data(), texts[i].size()};
    all += texts[i];
  }
  EXPECT_EQ(line.client->send(parts), std::ssize(all));
  line.carry();
  EXPECT_EQ(line.seen[0].size(), all.size() + TlsStream::kRecordOverhead);
  // and are received into parts
  std::array<std::string, 3> into{std::string(2, ' '), std::string(1, ' '), std::string(9000, ' ')};
  std::array<iovec, 3> rooms{};
  for (std::size_t i = 0; i < into.size(); ++i) rooms[i] = {into[i].data(), into[i].size()};
  ASSERT_EQ(line.server->receive(rooms), std::ssize(all));
  EXPECT_EQ(into[0] + into[1] + into[2].substr(0, all.size() - 3), all);
}

/// Both ends send more than the sockets take, and neither of them waits.
TEST_F(OpenLine, AFullSocketTakesTheRestLater) {
  const std::array<std::string, 2> texts{pattern(3'000'001, 1), pattern(2'000'003, 2)};
  std::array<std::size_t, 2> sent{};
  std::array<std::string, 2> arrived;
  bool was_full = false;
  while (arrived[0].size() < texts[0].size() || arrived[1].size() < texts[1].size()) {
    for (const std::size_t end : {0u, 1u}) {
      TlsStream& own = end == 0 ? *line.client : *line.server;
      if (sent[end] < texts[end].size()) {
        const ssize_t n = send(own, std::string_view(texts[end]).substr(sent[end]));
        if (n < 0) {
          ASSERT_EQ(errno, EAGAIN);
          was_full = true;
        } else {
          sent[end] += static_cast<std::size_t>(n);
          was_full |= sent[end] < texts[end].size();
        }
      }
      while (const auto part = receive(own)) arrived[1 - end] += *part;
    }
    line.carry();
  }
  EXPECT_TRUE(was_full);
  EXPECT_EQ(arrived, texts);
}

TEST_F(OpenLine, ANewKeyInBetweenChangesNothing) {
  std::string arrived, sent;
  for (int i = 0; i < 5; ++i) {
    ASSERT_TRUE(line.client->renew_key().ok());
    const std::string text = pattern(20'000, i);
    ASSERT_EQ(send(*line.client, text), std::ssize(text));
    sent += text;
    line.carry();
    while (const auto part = receive(*line.server)) arrived += *part;
    ASSERT_EQ(send(*line.server, "yes"), 3);
    line.carry();
    EXPECT_EQ(receive(*line.client), "yes");
  }
  EXPECT_EQ(arrived, sent);
}

TEST_F(OpenLine, EveryChangedByteOfARecordIsNoticed) {
  const std::string text = "some weights";
  const std::size_t bytes = text.size() + TlsStream::kRecordOverhead;
  for (std::size_t at = kHead; at < bytes; ++at) {
    Line each;
    (void)each.shake_hands();
    ASSERT_TRUE(each.is_open);
    each.change = [&](Line::Way, std::string& record) {
      ASSERT_EQ(record.size(), bytes);
      record[at] ^= 1;
    };
    ASSERT_EQ(send(*each.client, text), std::ssize(text));
    each.carry();
    EXPECT_EQ(receive_error(*each.server), EBADMSG) << at;
    EXPECT_EQ(receive_error(*each.server), EBADMSG) << "later, too";
  }
}

TEST_F(OpenLine, ARepeatedRecordIsNoticed) {
  line.change = [](Line::Way, std::string& record) { record += record; };
  ASSERT_EQ(send(*line.client, "once"), 4);
  line.carry();
  EXPECT_EQ(receive(*line.server, 4), "once");
  EXPECT_EQ(receive_error(*line.server), EBADMSG);
}

/// Whoever cuts the line cannot make it look as if the peer had no more to say.
TEST_F(OpenLine, AnEndWithoutAWordIsAnError) {
  ASSERT_EQ(send(*line.client, "all"), 3);
  line.carry();
  line.cut(Line::kToServer);
  EXPECT_EQ(receive(*line.server), "all");
  EXPECT_EQ(receive_error(*line.server), ECONNRESET);
}

TEST_F(OpenLine, APartOfARecordIsNotDelivered) {
  line.change = [](Line::Way, std::string& record) { record.resize(20); };
  ASSERT_EQ(send(*line.client, "something longer than that"), 26);
  line.carry();
  EXPECT_EQ(receive(*line.server), std::nullopt);
  line.cut(Line::kToServer);
  EXPECT_EQ(receive_error(*line.server), ECONNRESET);
}

TEST_F(OpenLine, AnOrderlyEndIsSaid) {
  ASSERT_EQ(send(*line.client, "all"), 3);
  line.client.reset();
  line.client_socket.reset();
  line.carry();
  line.cut(Line::kToServer);
  EXPECT_EQ(receive(*line.server), "all");
  EXPECT_EQ(receive(*line.server), "");
}

TEST_F(OpenLine, ABlockingEndWaitsForTheRestOfARecord) {
  const std::string text = pattern(50'000);
  Channel reader(std::move(line.server_socket), std::move(line.server));
  ASSERT_TRUE(reader.is_encrypted());
  reader.set_blocking();
  std::string arrived;
  for (std::size_t sent = 0; arrived.size() < text.size();) {
    const ssize_t n = sent < text.size() ? send(*line.client, text.substr(sent)) : 0;
    if (n > 0) sent += static_cast<std::size_t>(n);
    while (line.carry()) {
    }
    std::string part(7000, '\0');
    const iovec room{part.data(), part.size()};
    const ssize_t got = reader.receive({&room, 1});
    ASSERT_GT(got, 0);
    arrived += part.substr(0, static_cast<std::size_t>(got));
  }
  EXPECT_EQ(arrived, text);
}

TEST(TlsSetting, IsOneOfThree) {
  EXPECT_EQ(*parse_tls_setting("off"), TlsSetting::kOff);
  EXPECT_EQ(*parse_tls_setting("psk"), TlsSetting::kPsk);
  EXPECT_EQ(*parse_tls_setting("always"), TlsSetting::kAlways);
  EXPECT_EQ(parse_tls_setting("on").status().message(),
            "STORMO_TLS is 'on': use off, psk or always");
}

TEST(TlsSetting, InsideAHostNobodyInsists) {
  const auto [one, other] = socket_pair();
  EXPECT_EQ(tls_wish(one.get(), TlsSetting::kAlways), TlsWish::kInside);
  const Descriptor listener = listen_tcp({"127.0.0.1", 0}, {}).take_or_throw();
  const Descriptor client =
      start_connect(local_address_of(listener.get()).take_or_throw()).take_or_throw();
  EXPECT_EQ(tls_wish(client.get(), TlsSetting::kPsk), TlsWish::kInside);
  EXPECT_EQ(tls_wish(client.get(), TlsSetting::kOff), TlsWish::kInside);
  EXPECT_EQ(tls_wish(client.get(), TlsSetting::kAlways), TlsWish::kPsk);
}

/// A port with a gate, and who calls it.
class GateAndDialer : public ::testing::Test {
 protected:
  void SetUp() override {
    Gate::Options options;
    options.listener = listen_tcp({"127.0.0.1", 0}, {}).take_or_throw();
    address = local_address_of(options.listener.get()).take_or_throw();
    options.secret = secret;
    options.tls = TlsSetting::kPsk;
    options.on_refused = [this](std::string_view line) { refused.emplace_back(line); };
    gate = Gate::open(std::move(options)).take_or_throw();
  }
  Dialer dialer(TlsSetting tls) const { return Dialer({{address}, secret, Hello{}, tls}); }
  std::pair<Channel, Channel> connect(TlsSetting tls) {
    Dialer calls = dialer(tls);
    std::vector<Gate::Visitor> visitors;
    const RealClock clock;
    while (!calls.step(clock.now()) || visitors.empty()) {
      for (auto& v : gate->step(clock.now())) visitors.push_back(std::move(v));
    }
    return {calls.take().take_or_throw(), std::move(visitors[0].socket)};
  }

  const Secret secret = Secret::random();
  SocketAddress address;
  std::unique_ptr<Gate> gate;
  std::vector<std::string> refused;
};

TEST_F(GateAndDialer, OneThatWantsTlsIsEnough) {
  const auto [plain, plain_too] = connect(TlsSetting::kPsk);  // inside a host
  EXPECT_FALSE(plain.is_encrypted() || plain_too.is_encrypted());
  auto [client, server] = connect(TlsSetting::kAlways);
  ASSERT_TRUE(client.is_encrypted() && server.is_encrypted());
  // nothing that follows the handshake is taken before somebody asks for it: poll() sees it
  std::string text = "hello";
  const iovec all{text.data(), text.size()};
  ASSERT_EQ(client.send({&all, 1}), 5);
  pollfd p{server.fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 10'000), 1);
  std::string got(5, ' ');
  const iovec room{got.data(), got.size()};
  EXPECT_EQ(server.receive({&room, 1}), 5);
  EXPECT_EQ(got, text);
}

TEST_F(GateAndDialer, ASilentPeerHasItsTimeAndNoMore) {
  const RealClock clock;
  Dialer calls = dialer(TlsSetting::kAlways);
  // the gate answers until the client waits for TLS, then it is silent
  while (calls.last_failure() != "connected, but the peer does not answer the handshake of TLS") {
    ASSERT_FALSE(calls.step(clock.now()));
    if (calls.last_failure().find("of TLS") == std::string::npos) {
      ASSERT_THAT(gate->step(clock.now()), IsEmpty());
    }
  }
  EXPECT_FALSE(gate->idle());
  // the client is silent now
  ASSERT_THAT(gate->step(clock.now() + Gate::kHandshakeTime), IsEmpty());
  EXPECT_TRUE(gate->idle());
  ASSERT_EQ(refused.size(), 1u);
  EXPECT_THAT(refused[0], HasSubstr("no complete handshake within 3 s"));
}

}  // namespace
}  // namespace stormo::transport
