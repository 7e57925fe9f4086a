#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <stormo/base/rng.h>
#include <stormo/transport/net/dialer.h>
#include <stormo/transport/net/gate.h>
#include <stormo/transport/store/store.h>
#include <stormo/transport/store/store_address.h>
#include <stormo/transport/tcp/tcp_transport.h>
#include <sys/socket.h>

#include <atomic>
#include <condition_variable>
#include <future>
#include <mutex>
#include <thread>
#include <vector>

/// Strangers against the Store's port and a rank's port while a real job runs: refused, logged once
/// each, and the job's result is what it is without them.
namespace stormo::transport {
namespace {

using ::testing::Each;
using ::testing::StartsWith;
using namespace std::chrono_literals;
using Bytes = std::vector<std::byte>;

Deadline soon() { return Deadline::after(60s); }

class Log {
 public:
  void add(std::string_view line) {
    const std::lock_guard lock(mutex_);
    lines_.emplace_back(line);
    changed_.notify_all();
  }
  std::vector<std::string> wait_for_count(std::size_t count) {
    std::unique_lock lock(mutex_);
    changed_.wait_for(lock, 20s, [&] { return lines_.size() >= count; });
    return lines_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

Descriptor connect_raw(const std::string& address) {
  const auto to = resolve(*parse_host_port(address));
  Descriptor fd(::socket((*to)[0].family(), SOCK_STREAM | SOCK_CLOEXEC, 0));
  EXPECT_EQ(
      ::connect(fd.get(), reinterpret_cast<const sockaddr*>(&(*to)[0].storage), (*to)[0].length),
      0);
  return fd;
}

void send_raw(const Descriptor& fd, std::span<const std::byte> bytes) {
  (void)!::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL);
}

/// Waits until the other end has closed, reading and dropping what it says.
bool is_closed(const Descriptor& fd) {
  for (;;) {
    pollfd p{fd.get(), POLLIN, 0};
    if (::poll(&p, 1, 20000) <= 0) return false;
    std::array<std::byte, 512> buffer;
    if (::recv(fd.get(), buffer.data(), buffer.size(), 0) <= 0) return true;
  }
}

/// The messages of one client of an earlier run against the same secret.
Bytes recorded_client(const Secret& secret, Purpose purpose) {
  Handshake client = Handshake::as_client(secret, {purpose, 1, 1, 0, 2}, random_nonce());
  Handshake server = Handshake::as_server(secret, purpose, random_nonce());
  Bytes out;
  const auto pass = [](Handshake& from, Handshake& to, Bytes* copy) {
    const Bytes m(from.output().begin(), from.output().end());
    from.sent(m.size());
    to.receive(m);
    if (copy != nullptr) copy->insert(copy->end(), m.begin(), m.end());
  };
  pass(client, server, &out);
  pass(server, client, nullptr);
  pass(client, server, &out);
  EXPECT_EQ(server.state(), Handshake::State::kProven);
  return out;
}

/// One of each kind, and seeded random bytes. Each waits until it is thrown out.
int visit_as_strangers(const std::string& address, const Secret& secret, Purpose purpose,
                       int random_streams) {
  int visits = 0;
  const auto visit = [&](std::span<const std::byte> bytes) {
    const Descriptor fd = connect_raw(address);
    send_raw(fd, bytes);
    ::shutdown(fd.get(), SHUT_WR);
    EXPECT_TRUE(is_closed(fd));
    ++visits;
  };
  const std::string http = "GET / HTTP/1.1\r\nHost: x\r\n\r\n";
  visit(std::as_bytes(std::span(http)));
  visit({});
  const Bytes replay = recorded_client(secret, purpose);
  visit(replay);
  visit(std::span(replay).first(40));  // truncated
  Rng rng(4, "strangers", static_cast<std::uint64_t>(purpose));
  for (int i = 0; i < random_streams; ++i) {
    Bytes bytes(rng.below(300));
    for (std::byte& b : bytes) b = static_cast<std::byte>(rng.next_u32());
    // Half of them know how a conversation starts.
    if (i % 2 == 0)
      std::copy_n(replay.begin(), std::min<std::size_t>(bytes.size(), 12), bytes.begin());
    visit(bytes);
  }
  return visits;
}

/// Reflects every byte back to who sent it.
void visit_as_mirror(const std::string& address, Purpose purpose) {
  const Descriptor fd = connect_raw(address);
  Handshake bait = Handshake::as_client(Secret::random(), {purpose, 1, 1, 0, 2}, random_nonce());
  send_raw(fd, bait.output());
  std::array<std::byte, 512> buffer;
  const ssize_t n = ::recv(fd.get(), buffer.data(), buffer.size(), 0);
  if (n > 0) send_raw(fd, std::span(buffer).first(static_cast<std::size_t>(n)));
  EXPECT_TRUE(is_closed(fd));
}

/// Says what a rank of another job would say.
void visit_with_wrong_secret(const std::string& address, Purpose purpose) {
  const Descriptor fd = connect_raw(address);
  Handshake rank = Handshake::as_client(Secret::random(), {purpose, 1, 1, 0, 2}, random_nonce());
  send_raw(fd, rank.output());
  rank.sent(rank.output().size());
  std::array<std::byte, 80> answer;
  ASSERT_EQ(::recv(fd.get(), answer.data(), answer.size(), MSG_WAITALL), 80);
  rank.receive(answer);
  EXPECT_EQ(rank.refusal(), Refusal::kSecret);
  send_raw(fd, rank.output());
  EXPECT_TRUE(is_closed(fd));
}

TEST(Strangers, AtTheStoreChangeNothing) {
  const Secret secret = Secret::random();
  Log log;
  StoreServer::Options options;
  options.listen = "tcp:127.0.0.1";
  options.secret = secret;
  options.on_refused = [&](std::string_view line) { log.add(line); };
  const auto server = StoreServer::start(options);
  ASSERT_TRUE(server.ok());
  const std::string address = (*server)->address().text.substr(4);

  std::atomic<bool> stop = false;
  std::atomic<std::int64_t> calls = 0;
  std::thread job([&] {
    const auto client = StoreClient::connect({(*server)->address(), secret, 50ms}, soon());
    ASSERT_TRUE(client.ok());
    ASSERT_TRUE((*client)->set_will("failure", "the job was disturbed", 10s, soon()).ok());
    while (!stop) {
      ASSERT_TRUE((*client)->set("calls", std::to_string(++calls), soon()).ok());
    }
    ASSERT_TRUE((*client)->goodbye(soon()).ok());
  });
  int visits = visit_as_strangers(address, secret, Purpose::kStore, 1000);
  visit_as_mirror(address, Purpose::kStore);
  ++visits;
  visit_with_wrong_secret(address, Purpose::kStore);
  ++visits;
  stop = true;
  job.join();

  EXPECT_GT(calls, 0);
  EXPECT_EQ((*server)->get("calls"), std::to_string(calls.load()));
  EXPECT_EQ((*server)->get("failure"), std::nullopt);
  const auto lines = log.wait_for_count(static_cast<std::size_t>(visits));
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(visits)) << "one line for each stranger";
  EXPECT_THAT(lines, Each(StartsWith("refused 127.0.0.1:")));
}

TEST(Strangers, AtARankPortChangeNothing) {
  const Secret secret = Secret::random();
  auto listener = std::move(*TcpListener::listen("127.0.0.1", {}));
  const std::string address = listener->address();
  Log log;
  const auto options = [&](Rank rank) {
    TcpOptions o;
    o.rank = rank;
    o.size = 2;
    o.peers = {{1 - rank, address}};
    o.secret = secret;
    o.epoch = 1;
    o.on_refused = [&](std::string_view line) { log.add(line); };
    return o;
  };
  auto zero = std::async(std::launch::async,
                         [&] { return connect_tcp(options(0), std::move(listener), soon()); });
  // More silent strangers than the gate has places for stand in front of the real peer.
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 2 * Gate::kMaxUnproven; ++i) silent.push_back(connect_raw(address));
  int visits = visit_as_strangers(address, secret, Purpose::kData, 1000);
  visit_as_mirror(address, Purpose::kData);
  ++visits;
  const auto one = connect_tcp(options(1), nullptr, soon());
  ASSERT_TRUE(one.ok()) << one.status().to_string();
  const auto t = zero.get();
  ASSERT_TRUE(t.ok()) << t.status().to_string();
  const auto lines = log.wait_for_count(static_cast<std::size_t>(visits) + silent.size());
  EXPECT_EQ(lines.size(), static_cast<std::size_t>(visits) + silent.size());
  EXPECT_THAT(lines, Each(StartsWith("refused 127.0.0.1:")));

  // Set up: the port is closed, and the two exchange as ever.
  const auto to = resolve(*parse_host_port(address));
  const auto late = start_connect((*to)[0]);
  if (late.ok()) {
    pollfd p{late->get(), POLLOUT, 0};
    ASSERT_EQ(::poll(&p, 1, 20000), 1);
    EXPECT_FALSE(connect_outcome(late->get()).ok());
  }
  std::int64_t got = 0;
  const std::int64_t value = 42;
  auto receive = std::async(std::launch::async, [&] {
    return t->transport->recv(1, 1, std::as_writable_bytes(std::span(&got, 1)), soon());
  });
  ASSERT_TRUE(one->transport->send(0, 1, std::as_bytes(std::span(&value, 1)), soon()).ok());
  ASSERT_TRUE(receive.get().ok());
  EXPECT_EQ(got, 42);
}

/// Time is an argument of the gate, so a slow stranger costs the test nothing.
TEST(Strangers, ASlowLorisIsThrownOutAtTheDeadline) {
  Descriptor listener = std::move(*listen_tcp({"127.0.0.1", 0}, {}));
  const std::string address = local_address_of(listener.get())->to_string();
  std::vector<std::string> lines;
  Gate::Options options;
  options.listener = std::move(listener);
  options.secret = Secret::random();
  options.on_refused = [&](std::string_view line) { lines.emplace_back(line); };
  const auto gate = std::move(*Gate::open(std::move(options)));
  const Descriptor fd = connect_raw(address);
  const Bytes hello = recorded_client(Secret::random(), Purpose::kStore);
  ManualClock clock;
  pollfd p{gate->poll_fd(), POLLIN, 0};
  ASSERT_EQ(::poll(&p, 1, 20000), 1);
  EXPECT_TRUE(gate->step(clock.now()).empty());
  EXPECT_EQ(gate->wake_at(clock.now()), clock.now() + Gate::kHandshakeTime);
  for (std::size_t i = 0; i < 6; ++i) {  // a byte every 499 ms
    send_raw(fd, std::span(hello).subspan(i, 1));
    ASSERT_EQ(::poll(&p, 1, 20000), 1);
    clock.advance(499ms);
    EXPECT_TRUE(gate->step(clock.now()).empty());
    EXPECT_TRUE(lines.empty());
  }
  clock.advance(10ms);
  EXPECT_TRUE(gate->step(clock.now()).empty());
  EXPECT_TRUE(is_closed(fd));
  ASSERT_EQ(lines.size(), 1u);
  EXPECT_THAT(lines[0], ::testing::HasSubstr("no complete handshake within 3 s"));
}

/// A gate on a clock of its own, and a peer with the secret before it.
class GateAndPeer {
 public:
  GateAndPeer() {
    Descriptor listener = std::move(*listen_tcp({"127.0.0.1", 0}, {}));
    address = local_address_of(listener.get())->to_string();
    Gate::Options options;
    options.listener = std::move(listener);
    options.secret = secret_;
    options.on_refused = [this](std::string_view) { ++refused; };
    gate_ = std::move(*Gate::open(std::move(options)));
  }
  void connect() {
    fd_ = connect_raw(address);
    peer_.emplace(Handshake::as_client(secret_, {Purpose::kStore, 1, 1, 0, 2}, random_nonce()));
  }
  /// A turn of both at this time; how many were let in.
  std::size_t turn() {
    send_raw(fd_, peer_->output());
    peer_->sent(peer_->output().size());
    const std::size_t admitted = gate_->step(clock.now()).size();
    std::array<std::byte, 80> answer;
    pollfd p{fd_.get(), POLLIN, 0};
    if (::poll(&p, 1, 0) <= 0) return admitted;
    const ssize_t n = ::recv(fd_.get(), answer.data(), peer_->wanted(), MSG_DONTWAIT);
    EXPECT_GT(n, 0);
    if (n > 0) peer_->receive(std::span(answer).first(static_cast<std::size_t>(n)));
    return admitted;
  }
  bool waits() const { return peer_->state() == Handshake::State::kWaiting; }
  bool is_in() const { return peer_->state() == Handshake::State::kAccepted; }

  std::string address;
  ManualClock clock;
  std::size_t refused = 0;

 private:
  const Secret secret_ = Secret::random();
  std::unique_ptr<Gate> gate_;
  Descriptor fd_;
  std::optional<Handshake> peer_;
};

/// By the gate's own clock, whatever the machine does.
TEST(Strangers, ACrowdInFrontOfARealPeerDelaysItByMilliseconds) {
  GateAndPeer g;
  std::vector<Descriptor> silent;
  for (std::size_t i = 0; i < 2 * Gate::kMaxUnproven; ++i) silent.push_back(connect_raw(g.address));
  g.connect();
  const TimePoint start = g.clock.now();
  while (g.waits() && g.clock.now() - start < Gate::kHandshakeTime) {
    for (int turns = 0; turns < 10 && g.waits(); ++turns) g.turn();
    if (g.waits()) g.clock.advance(1ms);
  }
  ASSERT_TRUE(g.is_in());
  EXPECT_LE(g.clock.now() - start, 3 * Gate::kCrowdedGrace);
  EXPECT_GT(g.refused, Gate::kMaxUnproven) << "they had taken all places";
}

/// Two thousand silent strangers a second, by the gate's own clock; a real peer among each hundred
/// is heard as soon as it has spoken, and none of them waits behind strangers.
TEST(Strangers, AtTwoThousandASecondKeepNobodyWaiting) {
  GateAndPeer g;
  std::vector<Descriptor> strangers;
  for (int turn = 0; turn < 30; ++turn) {
    for (int i = 0; i < 100; ++i) strangers.push_back(connect_raw(g.address));
    g.connect();
    // No time passes: places are made, or were there. A turn of the gate lets in as many as it has
    // places for.
    std::size_t admitted = 0;
    for (int steps = 0; steps < 3 && g.waits(); ++steps) admitted += g.turn();
    ASSERT_TRUE(g.is_in()) << "turn " << turn;
    EXPECT_EQ(admitted, 1u);
    g.clock.advance(50ms);
    if (strangers.size() > 500) strangers.erase(strangers.begin(), strangers.begin() + 100);
  }
  EXPECT_GT(g.refused, 30u * 100u - Gate::kMaxUnproven - 100u) << "the strangers came";
}

}  // namespace
}  // namespace stormo::transport
