#pragma once

#include <gtest/gtest.h>
#include <stormo/transport/tcp/tcp_transport.h>

#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stormo::transport {

struct TcpFabricOptions {
  bool checksum = false;
  int sockets = 1;
  std::vector<std::shared_ptr<Health>> health;  ///< by rank; empty: none is watched
  /// Where others find the rank that listens at `address`; null: there.
  std::function<std::string(std::string address)> route;
};

/// The connections of ranks 0 .. n-1 over tcp on one host.
inline std::vector<TcpConnections> connect_tcp_fabric(int n, std::string_view host,
                                                      const TcpFabricOptions& fabric_options) {
  const auto count = static_cast<std::size_t>(n);
  std::vector<std::unique_ptr<TcpListener>> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < n; ++r) {
    auto listener = TcpListener::listen(host, {});
    EXPECT_TRUE(listener.ok()) << listener.status().to_string();
    const std::string& address = (*listener)->address();
    addresses.push_back(fabric_options.route ? fabric_options.route(address) : address);
    listeners.push_back(std::move(*listener));
  }
  const Secret secret = Secret::random();
  std::vector<TcpConnections> fabric(count);
  std::vector<std::thread> threads;
  for (std::size_t r = 0; r < count; ++r) {
    threads.emplace_back([&, r] {
      TcpOptions options;
      options.rank = static_cast<Rank>(r);
      options.size = n;
      for (std::size_t p = 0; p < count; ++p) {
        if (p != r) options.peers.push_back({static_cast<Rank>(p), addresses[p]});
      }
      options.secret = secret;
      options.epoch = 3;
      options.checksum = fabric_options.checksum;
      if (!fabric_options.health.empty()) options.health = fabric_options.health[r];
      options.sockets = fabric_options.sockets;
      auto made = connect_tcp(std::move(options), std::move(listeners[r]),
                              Deadline::after(std::chrono::seconds(30)));
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      if (made.ok()) fabric[r] = std::move(*made);
    });
  }
  for (std::thread& t : threads) t.join();
  return fabric;
}

/// Their endpoints for collectives.
inline std::vector<std::unique_ptr<Transport>> make_tcp_fabric(int n, std::string_view host,
                                                               const TcpFabricOptions& options) {
  std::vector<std::unique_ptr<Transport>> out;
  for (TcpConnections& made : connect_tcp_fabric(n, host, options)) {
    out.push_back(std::move(made.transport));
  }
  return out;
}

inline std::vector<std::unique_ptr<Transport>> make_tcp_fabric(int n, std::string_view host,
                                                               bool checksum) {
  return make_tcp_fabric(n, host,
                         TcpFabricOptions{.checksum = checksum, .health = {}, .route = {}});
}

}  // namespace stormo::transport
