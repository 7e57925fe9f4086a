#include <gtest/gtest.h>
#include <stormo/base/rng.h>
#include <stormo/transport/net/handshake.h>
#include <stormo/transport/net/secret.h>

#include <algorithm>
#include <array>
#include <tuple>
#include <utility>
#include <vector>

namespace stormo::transport {
namespace {

using State = Handshake::State;
using Bytes = std::vector<std::byte>;

const Hello kHello{Purpose::kData, 7, 3, 1, 4};

Bytes take_output(Handshake& h) {
  const Bytes out(h.output().begin(), h.output().end());
  h.sent(out.size());
  return out;
}

/// Gives `bytes` to `h` in pieces of `piece`; returns how many it did not want.
std::size_t feed(Handshake& h, std::span<const std::byte> bytes, std::size_t piece = 1000) {
  while (!bytes.empty() && h.wanted() > 0) {
    const std::size_t n = std::min({piece, bytes.size(), h.wanted()});
    h.receive(bytes.first(n));
    bytes = bytes.subspan(n);
  }
  return bytes.size();
}

struct Pair {
  Handshake client;
  Handshake server;
  std::vector<Bytes> to_server;
  std::vector<Bytes> to_client;

  void run(std::size_t piece = 1000) {
    for (int turn = 0; turn < 4; ++turn) {
      to_server.push_back(take_output(client));
      feed(server, to_server.back(), piece);
      if (server.state() == State::kProven) server.admit();
      to_client.push_back(take_output(server));
      feed(client, to_client.back(), piece);
    }
  }
};

Pair make_pair_of(const Secret& client, const Secret& server, const Hello& hello = kHello) {
  return {Handshake::as_client(client, hello, random_nonce()),
          Handshake::as_server(server, Purpose::kData, random_nonce()),
          {},
          {}};
}

TEST(SecretText, RoundTripsAndRefusesEverythingElse) {
  const Secret secret = Secret::random();
  const std::string hex = secret.to_hex();
  ASSERT_EQ(hex.size(), 64u);
  EXPECT_EQ(Secret::from_hex(hex)->bytes(), secret.bytes());
  EXPECT_NE(Secret::random().to_hex(), hex);
  EXPECT_TRUE(Secret().empty());
  for (const std::string& bad : {std::string(), hex.substr(1), hex + "0", "g" + hex.substr(1)}) {
    const auto parsed = Secret::from_hex(bad);
    EXPECT_EQ(parsed.status().code(), Code::kInvalidArgument);
    if (bad.size() > 8) {
      EXPECT_EQ(parsed.status().message().find(bad.substr(2, 8)), std::string::npos)
          << "a message must not quote a secret";
    }
  }
}

TEST(Handshake, AcceptsTheSameSecretWhateverThePieces) {
  const Secret secret = Secret::random();
  for (const std::size_t piece : {1, 2, 7, 31, 64, 1000}) {
    Pair p = make_pair_of(secret, secret);
    p.run(piece);
    EXPECT_EQ(p.client.state(), State::kAccepted) << piece;
    EXPECT_EQ(p.server.state(), State::kAccepted) << piece;
    EXPECT_EQ(p.server.hello(), kHello);
    EXPECT_EQ(p.server.wanted(), 0u);
  }
  Pair none = make_pair_of({}, {});
  none.run();
  EXPECT_EQ(none.server.state(), State::kAccepted);
}

TEST(Handshake, RefusesAWrongSecretOnBothSides) {
  const Secret one = Secret::random();
  const Secret two = Secret::random();
  for (const auto& [client, server] : {std::pair{one, two}, {one, Secret()}, {Secret(), two}}) {
    Pair p = make_pair_of(client, server);
    p.run();
    EXPECT_EQ(p.client.refusal(), Refusal::kSecret);
    EXPECT_EQ(p.server.refusal(), Refusal::kSecret);
    EXPECT_EQ(p.server.reason(), "wrong secret");
  }
}

TEST(Handshake, NamesBothVersions) {
  Hello newer = kHello;
  newer.version = kProtocolVersion + 1;
  const Secret secret = Secret::random();
  Pair p = make_pair_of(secret, secret, newer);
  p.run();
  const std::string mine = std::to_string(kProtocolVersion);
  const std::string theirs = std::to_string(newer.version);
  EXPECT_EQ(p.server.refusal(), Refusal::kVersion);
  EXPECT_NE(p.server.reason().find("version " + theirs + ", this side version " + mine),
            std::string::npos);
  EXPECT_EQ(p.client.refusal(), Refusal::kVersion);
  EXPECT_NE(p.client.reason().find("version " + mine + ", this side version " + theirs),
            std::string::npos);
}

TEST(Handshake, RefusesAConnectionForAnotherPurpose) {
  Hello store = kHello;
  store.purpose = Purpose::kStore;
  const Secret secret = Secret::random();
  Pair p = make_pair_of(secret, secret, store);
  p.run();
  EXPECT_EQ(p.server.refusal(), Refusal::kPurpose);
  EXPECT_EQ(p.client.refusal(), Refusal::kPurpose);
}

/// Anybody can say no; only who knows the secret can mean it.
TEST(Handshake, ARefusalIsAuthenticWhenItIsSignedWithTheSecret) {
  Hello store = kHello;
  store.purpose = Purpose::kStore;
  Hello newer = kHello;
  newer.version = kProtocolVersion + 1;
  const Secret secret = Secret::random();
  for (const Hello& hello : {store, newer}) {
    Pair honest = make_pair_of(secret, secret, hello);
    honest.run();
    EXPECT_TRUE(honest.client.authentic_refusal());
    Pair forged = make_pair_of(secret, Secret::random(), hello);
    forged.run();
    EXPECT_EQ(forged.client.refusal(), honest.client.refusal());
    EXPECT_FALSE(forged.client.authentic_refusal());
  }
  Pair wrong = make_pair_of(secret, Secret::random());
  wrong.run();
  EXPECT_EQ(wrong.client.state(), State::kRefused);
  EXPECT_FALSE(wrong.client.authentic_refusal());
}

TEST(Handshake, CarriesTheServersDecision) {
  const Secret secret = Secret::random();
  for (const Refusal why : {Refusal::kEpoch, Refusal::kRank, Refusal::kDuplicate, Refusal::kFull}) {
    Pair p = make_pair_of(secret, secret);
    feed(p.server, take_output(p.client));
    feed(p.client, take_output(p.server));
    feed(p.server, take_output(p.client));
    ASSERT_EQ(p.server.state(), State::kProven);
    p.server.refuse(why);
    feed(p.client, take_output(p.server));
    EXPECT_EQ(p.client.refusal(), why);
    EXPECT_TRUE(p.client.authentic_refusal());
    EXPECT_EQ(p.client.reason(), "the peer refused: " + std::string(to_string(why)));
  }
}

/// If one end sees that the other is on another host, both speak TLS; with the same key, and with
/// another one in each connection.
TEST(Handshake, AgreesOnTls) {
  const Secret secret = Secret::random();
  using enum TlsWish;
  std::array<std::byte, 32> before{};
  for (const auto& [client, server, is_tls] : {std::tuple{kInside, kInside, false},
                                               {kInside, kOff, false},
                                               {kOff, kInside, false},
                                               {kOff, kOff, false},
                                               {kInside, kPsk, true},
                                               {kPsk, kInside, true},
                                               {kPsk, kPsk, true}}) {
    Hello hello = kHello;
    hello.tls = client;
    Pair p{Handshake::as_client(secret, hello, random_nonce()),
           Handshake::as_server(secret, Purpose::kData, random_nonce(), kProtocolVersion, server),
           {},
           {}};
    p.run();
    ASSERT_EQ(p.client.state(), State::kAccepted);
    EXPECT_EQ(p.client.is_tls_next(), is_tls);
    EXPECT_EQ(p.server.is_tls_next(), is_tls);
    EXPECT_EQ(p.client.tls_key(), p.server.tls_key());
    EXPECT_NE(p.client.tls_key(), std::exchange(before, p.client.tls_key()));
  }
}

TEST(Handshake, ADifferenceAboutTlsIsRefusedWithBothSettings) {
  const Secret secret = Secret::random();
  using enum TlsWish;
  for (const auto& [client, server] : {std::pair{kOff, kPsk}, {kPsk, kOff}}) {
    Hello hello = kHello;
    hello.tls = client;
    Pair p{Handshake::as_client(secret, hello, random_nonce()),
           Handshake::as_server(secret, Purpose::kData, random_nonce(), kProtocolVersion, server),
           {},
           {}};
    p.run();
    EXPECT_EQ(p.client.refusal(), Refusal::kTls);
    EXPECT_TRUE(p.client.authentic_refusal());
    EXPECT_EQ(p.server.refusal(), Refusal::kTls);
    EXPECT_EQ(p.client.reason(), tls_mismatch(client, server));
    EXPECT_EQ(p.server.reason(), tls_mismatch(server, client));
  }
  EXPECT_EQ(tls_mismatch(kOff, kPsk),
            "the peer has STORMO_TLS=psk, this process STORMO_TLS=off; set the same for all "
            "processes of the job: psk, or off where the network between the hosts is private");
}

TEST(Handshake, ARecordedHandshakeIsWorthNothing) {
  const Secret secret = Secret::random();
  Pair recorded = make_pair_of(secret, secret);
  recorded.run();
  ASSERT_EQ(recorded.server.state(), State::kAccepted);
  // To a server: fresh nonce, so the old proof is wrong.
  Handshake server = Handshake::as_server(secret, Purpose::kData, random_nonce());
  for (const Bytes& m : recorded.to_server) {
    feed(server, m);
    if (server.state() == State::kWaiting) (void)take_output(server);
  }
  EXPECT_EQ(server.refusal(), Refusal::kSecret);
  // To a client: likewise.
  Handshake client = Handshake::as_client(secret, kHello, random_nonce());
  (void)take_output(client);
  feed(client, recorded.to_client[0]);
  EXPECT_EQ(client.refusal(), Refusal::kSecret);
}

TEST(Handshake, ReflectedMessagesAreRefused) {
  const Secret secret = Secret::random();
  // A client that gets its own words back.
  Handshake client = Handshake::as_client(secret, kHello, random_nonce());
  Bytes own = take_output(client);
  own.resize(80);
  feed(client, own);
  EXPECT_EQ(client.state(), State::kRefused);
  // A server whose MAC is sent back to it as the client's proof.
  Handshake honest = Handshake::as_client(secret, kHello, random_nonce());
  Handshake server = Handshake::as_server(secret, Purpose::kData, random_nonce());
  feed(server, take_output(honest));
  const Bytes hello = take_output(server);
  feed(server, std::span(hello).last(32));
  EXPECT_EQ(server.refusal(), Refusal::kSecret);
}

TEST(Handshake, EveryFlippedBitIsNoticed) {
  const Secret secret = Secret::random();
  const std::size_t sizes[] = {64, 80, 32, 40};
  for (std::size_t message = 0; message < 4; ++message) {
    for (std::size_t bit = 0; bit < 8 * sizes[message]; ++bit) {
      Pair p = make_pair_of(secret, secret);
      for (std::size_t step = 0; step < 4; ++step) {
        Handshake& from = step % 2 == 0 ? p.client : p.server;
        Handshake& to = step % 2 == 0 ? p.server : p.client;
        Bytes m = take_output(from);
        if (step == message) m[bit / 8] ^= static_cast<std::byte>(1u << (bit % 8));
        feed(to, m);
        if (p.server.state() == State::kProven) p.server.admit();
      }
      EXPECT_NE(p.client.state(), State::kAccepted) << "message " << message << " bit " << bit;
      if (message < 3) {
        EXPECT_NE(p.server.state(), State::kAccepted) << "message " << message << " bit " << bit;
      }
    }
  }
}

TEST(Handshake, ForeignProtocolsAreToldByTheirFirstBytes) {
  for (const std::string& hello : {std::string("GET / HTTP/1.1\r\n"), std::string("\x16\x03\x01"),
                                   std::string("SSH-2.0-x\r\n"), std::string(1, '\0')}) {
    Handshake server = Handshake::as_server({}, Purpose::kData, random_nonce());
    feed(server, std::as_bytes(std::span(hello)));
    EXPECT_EQ(server.refusal(), Refusal::kNotStormo);
    EXPECT_TRUE(server.output().empty());
  }
}

/// Mutated and random input, in random pieces, to both roles: never accepted, never out of bounds.
TEST(Handshake, SurvivesRandomInput) {
  const Secret secret = Secret::random();
  Rng rng(1, "handshake fuzz");
  Nonce fixed{};
  Handshake sample = Handshake::as_client(secret, kHello, fixed);
  const Bytes client_hello = take_output(sample);
  Handshake sample_server = Handshake::as_server(secret, Purpose::kData, fixed);
  feed(sample_server, client_hello);
  const Bytes server_hello = take_output(sample_server);
  for (int i = 0; i < 50000; ++i) {
    const bool server = i % 2 == 0;
    Handshake h = server ? Handshake::as_server(secret, Purpose::kData, fixed)
                         : Handshake::as_client(secret, kHello, Nonce{std::byte{1}});
    if (!server) (void)take_output(h);
    Bytes input = server ? client_hello : server_hello;
    input.resize(rng.below(200));
    for (auto flips = rng.below(4); flips > 0 && !input.empty(); --flips) {
      input[rng.below(input.size())] = static_cast<std::byte>(rng.next_u32());
    }
    std::span<const std::byte> rest(input);
    while (!rest.empty() && h.wanted() > 0) {
      const std::size_t n = std::min<std::size_t>({1 + rng.below(90), rest.size(), h.wanted()});
      h.receive(rest.first(n));
      (void)take_output(h);
      rest = rest.subspan(n);
    }
    ASSERT_TRUE(h.state() == State::kWaiting || h.state() == State::kRefused);
  }
}

}  // namespace
}  // namespace stormo::transport
