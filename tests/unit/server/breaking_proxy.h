#pragma once

// A proxy whose connections break, for tests.
#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <stormo/base/rng.h>
#include <stormo/transport/net/socket.h>

namespace stormo::server {

inline void make_blocking(int fd) {
  (void)::fcntl(fd, F_SETFL, ::fcntl(fd, F_GETFL) & ~O_NONBLOCK);
}

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
  /// Passed on so far, both ways.
  std::int64_t bytes() const { return bytes_; }
  /// From now on connections hold.
  void hold() { holds_ = true; }
  /// Whether there are new connections from now on.
  void refuse(bool refuses) { refuses_ = refuses; }
  /// From now on an end that closes looks silent to the other one.
  void hide_ends() { hides_ends_ = true; }
  /// Breaks one connection, in the order of their beginnings.
  void cut(std::size_t number) {
    const std::lock_guard lock(mutex_);
    pairs_[number]->cut();
  }
  std::size_t connections() const {
    const std::lock_guard lock(mutex_);
    return pairs_.size();
  }

 private:
  struct Pair {
    std::array<transport::Descriptor, 2> ends;
    std::atomic<std::int64_t> left{0};  // bytes until it breaks
    void cut() {
      for (const transport::Descriptor& end : ends) (void)::shutdown(end.get(), SHUT_RDWR);
    }
  };

  void accept_all() {
    while (!is_over_) {
      pollfd p{listener_.get(), POLLIN, 0};
      if (::poll(&p, 1, 20) <= 0) continue;
      transport::SocketAddress from;
      auto pair = std::make_shared<Pair>();
      pair->ends[0] = transport::accept_from(listener_.get(), &from).take_or_throw();
      if (refuses_) continue;
      pair->ends[1] = transport::start_connect(transport::resolve(server_).take_or_throw().front())
                          .take_or_throw();
      for (const transport::Descriptor& end : pair->ends) {
        make_blocking(end.get());
        transport::tune_tcp(end.get());
      }
      // within a handshake and small messages, or within arrays
      pair->left =
          static_cast<std::int64_t>(rng_.below(2) == 0 ? rng_.below(3000) : rng_.below(800'000));
      {
        const std::lock_guard lock(mutex_);
        pairs_.push_back(pair);
      }
      for (const std::size_t from_end : {0u, 1u}) {
        pumps_.emplace_back([this, pair, from_end] { pump(*pair, from_end); });
      }
    }
  }

  void pump(Pair& pair, std::size_t from) {
    std::array<char, 4096> buffer;
    for (;;) {
      const ssize_t n = ::recv(pair.ends[from].get(), buffer.data(), buffer.size(), 0);
      if (n <= 0 && hides_ends_) return;
      if (n <= 0) return pair.cut();
      std::int64_t pass = n;
      if (!holds_) {
        const std::int64_t left = pair.left.fetch_sub(n);
        if (left <= n) {
          pass = std::max<std::int64_t>(left, 0);
          ++breaks_;
        }
      }
      bytes_ += pass;
      if (pass > 0) {
        (void)::send(pair.ends[1 - from].get(), buffer.data(), static_cast<std::size_t>(pass),
                     MSG_NOSIGNAL);
      }
      if (pass < n) return pair.cut();
    }
  }

  transport::HostPort server_;
  transport::Descriptor listener_;
  Rng rng_;
  mutable std::mutex mutex_;
  std::vector<std::shared_ptr<Pair>> pairs_;  // guarded
  std::vector<std::thread> pumps_;
  std::atomic<int> breaks_{0};
  std::atomic<std::int64_t> bytes_{0};
  std::atomic<bool> holds_{false}, refuses_{false}, hides_ends_{false}, is_over_{false};
  std::thread thread_;
};

}  // namespace stormo::server
