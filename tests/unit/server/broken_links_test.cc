// A worker whose connections to the server break at any byte.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <mutex>
#include <set>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <stormo/base/rng.h>
#include <stormo/transport/net/socket.h>

#include "server_run.h"

namespace stormo::server {
namespace {

using std::chrono::seconds;
using transport::Descriptor;
using Kind = protocol::PolicyOptions::Kind;

void make_blocking(int fd) { (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK); }

/// Passes connections on to a server, and breaks each after a random number of bytes.
class BreakingProxy {
 public:
  BreakingProxy(transport::HostPort server, std::uint64_t seed)
      : server_(std::move(server)),
        listener_(transport::listen_tcp({.host = "127.0.0.1", .port = 0}, {}).take_or_throw()),
        rng_(seed, "breaks") {
    thread_ = std::thread([this] { accept_all(); });
  }
  ~BreakingProxy() {
    is_over_ = true;
    thread_.join();
    for (const auto& pair : pairs_) pair->cut();
    for (std::thread& t : pumps_) t.join();
  }
  transport::HostPort address() const {
    return transport::parse_host_port(
               transport::local_address_of(listener_.get()).take_or_throw().to_string())
        .take_or_throw();
  }
  int breaks() const { return breaks_; }
  /// From now on connections hold.
  void hold() { holds_ = true; }

 private:
  struct Pair {
    std::array<Descriptor, 2> ends;
    std::atomic<std::int64_t> left{0};  // bytes until it breaks
    void cut() {
      for (const Descriptor& end : ends) (void)::shutdown(end.get(), SHUT_RDWR);
    }
  };

  void accept_all() {
    while (!is_over_) {
      pollfd p{listener_.get(), POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      transport::SocketAddress from;
      auto pair = std::make_shared<Pair>();
      pair->ends[0] = transport::accept_from(listener_.get(), &from).take_or_throw();
      pair->ends[1] = transport::start_connect(transport::resolve(server_).take_or_throw().front())
                          .take_or_throw();
      for (const Descriptor& end : pair->ends) {
        make_blocking(end.get());
        transport::tune_tcp(end.get());
      }
      // within a handshake and small messages, or within arrays
      pair->left =
          static_cast<std::int64_t>(rng_.below(2) == 0 ? rng_.below(3000) : rng_.below(800'000));
      pairs_.push_back(pair);
      for (const std::size_t from_end : {0u, 1u}) {
        pumps_.emplace_back([this, pair, from_end] { pump(*pair, from_end); });
      }
    }
  }

  void pump(Pair& pair, std::size_t from) {
    std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t n = ::recv(pair.ends[from].get(), buffer.data(), buffer.size(), 0);
      if (n <= 0) return pair.cut();
      std::int64_t pass = n;
      if (!holds_) {
        const std::int64_t left = pair.left.fetch_sub(n);
        if (left <= n) {
          pass = std::max<std::int64_t>(left, 0);
          ++breaks_;
        }
      }
      if (pass > 0) {
        (void)::send(pair.ends[1 - from].get(), buffer.data(), static_cast<std::size_t>(pass),
                     MSG_NOSIGNAL);
      }
      if (pass < n) return pair.cut();
    }
  }

  transport::HostPort server_;
  Descriptor listener_;
  Rng rng_;
  std::vector<std::shared_ptr<Pair>> pairs_;
  std::vector<std::thread> pumps_;
  std::atomic<int> breaks_{0};
  std::atomic<bool> holds_{false}, is_over_{false};
  std::thread thread_;
};

class BrokenLinks : public testing::TestWithParam<std::uint64_t> {};
INSTANTIATE_TEST_SUITE_P(Seeds, BrokenLinks, testing::Values(1, 2, 3));

// Every read, push, join and task counts once, whatever connection broke at whatever byte.
TEST_P(BrokenLinks, NothingIsLostAndNothingIsDoneTwice) {
  constexpr std::uint64_t kSteps = 40;
  ServedRun run;
  BreakingProxy proxy(run.address(), GetParam());
  Worker near = Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  Worker me = Worker::begin(session_options(proxy.address(), 1, 2, seconds(10), false),
                            small_terms(2, Kind::kAsync));
  std::set<std::uint64_t> steps;
  for (std::uint64_t i = 0; i < kSteps; ++i) {
    for (const auto& shard : me.shards) shard->begin_read(Deadline::never());
    for (std::size_t s = 0; s < 2; ++s) (void)me.value(s);
    for (std::size_t s = 0; s < 2; ++s) {
      EXPECT_EQ(me.push(s, i, 0.5).take_or_throw().decision.action, protocol::PushAction::kUpdate);
    }
    const auto task = me.session->ledger().next({.loss_sum = 1, .samples = 2}).take_or_throw().task;
    EXPECT_TRUE(task && steps.insert(task->step).second);
    if (i % 8 != 7) continue;
    (void)me.shards[0]->leave(1).take_or_throw();
    EXPECT_EQ(me.shards[0]->join().take_or_throw().sequence, i + 1);
  }
  EXPECT_GT(proxy.breaks(), 20);
  EXPECT_EQ(steps.size(), kSteps);
  double v = 0, w = 0;
  for (std::uint64_t i = 0; i < kSteps; ++i) w -= 0.5 * (v = 0.5 * v + 1);
  for (std::size_t s = 0; s < 2; ++s) {
    const auto state = near.shards[s]->state().take_or_throw();
    EXPECT_EQ(state.version, kSteps);
    EXPECT_EQ(state.worker(1).pushes, kSteps);
    if (s == 1) {
      EXPECT_EQ(state.worker(1).reads, kSteps);
    }
    EXPECT_NEAR(near.value(s), w, 1e-9);
  }
  EXPECT_EQ(near.session->ledger().look().take_or_throw().totals.samples,
            static_cast<std::int64_t>(2 * kSteps));
  proxy.hold();
  EXPECT_TRUE(me.session->finish().ok());
  EXPECT_TRUE(near.session->finish().ok());
  EXPECT_TRUE(run.outcome().ok()) << run.events();
  EXPECT_FALSE(run.has_event("lost")) << run.events();
}

TEST_P(BrokenLinks, AnExchangeIsMadeOnce) {
  ServedRun run;
  BreakingProxy proxy(run.address(), GetParam());
  Worker near = Worker::begin(session_options(run.address(), 0, 2), small_terms(2, Kind::kAsync));
  Worker me = Worker::begin(session_options(proxy.address(), 1, 2, seconds(10), false),
                            small_terms(2, Kind::kAsync));
  std::vector<double> own(static_cast<std::size_t>(kShardElements), 64);
  void* pieces[] = {own.data()};
  double x = 64, centre = 0;
  for (std::uint64_t i = 0; i < 30; ++i) {
    own.assign(own.size(), x += 1);
    (void)me.shards[0]->exchange(pieces, 0.25, i, Deadline::never()).take_or_throw();
    const double d = 0.25 * (x - centre);
    x -= d;
    centre += d;
    EXPECT_THAT(own, testing::Each(x)) << "exchange " << i;
  }
  EXPECT_GT(proxy.breaks(), 5);
  EXPECT_EQ(near.value(0), centre);
}

}  // namespace
}  // namespace stormo::server
