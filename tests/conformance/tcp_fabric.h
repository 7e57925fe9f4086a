#pragma once

#include <gtest/gtest.h>
#include <stormo/transport/tcp/tcp_transport.h>

#include <memory>
#include <string>
#include <thread>
#include <vector>

namespace stormo::transport {

/// The endpoints of ranks 0 .. n-1 over tcp on one host.
inline std::vector<std::unique_ptr<Transport>> make_tcp_fabric(int n, std::string_view host,
                                                               bool checksum) {
  const auto count = static_cast<std::size_t>(n);
  std::vector<std::unique_ptr<TcpListener>> listeners;
  std::vector<std::string> addresses;
  for (int r = 0; r < n; ++r) {
    auto listener = TcpListener::listen(host, {});
    EXPECT_TRUE(listener.ok()) << listener.status().to_string();
    addresses.push_back((*listener)->address());
    listeners.push_back(std::move(*listener));
  }
  const Secret secret = Secret::random();
  std::vector<std::unique_ptr<Transport>> fabric(count);
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
      options.checksum = checksum;
      auto made = make_tcp_transport(std::move(options), std::move(listeners[r]),
                                     Deadline::after(std::chrono::seconds(30)));
      EXPECT_TRUE(made.ok()) << made.status().to_string();
      if (made.ok()) fabric[r] = std::move(*made);
    });
  }
  for (std::thread& t : threads) t.join();
  return fabric;
}

}  // namespace stormo::transport
