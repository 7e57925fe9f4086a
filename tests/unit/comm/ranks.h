#pragma once

#include <gtest/gtest.h>
#include <stormo/comm/group/group.h>
#include <stormo/transport/inproc/inproc.h>

#include <functional>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "tests/conformance/tcp_fabric.h"
#include "tests/sanitized.h"

namespace stormo::comm {

#define EXPECT_OK(expr)                               \
  do {                                                \
    const Status status_ = (expr);                    \
    EXPECT_TRUE(status_.ok()) << status_.to_string(); \
  } while (false)

#define ASSERT_OK(expr)                               \
  do {                                                \
    const Status status_ = (expr);                    \
    ASSERT_TRUE(status_.ok()) << status_.to_string(); \
  } while (false)

/// Arenas are never given back, and sanitizers have little address space.
inline constexpr std::uint64_t kTestArenaBytes = 256 << 20;

/// Ranks as threads: those of one "host" share memory, hosts are joined by TCP over loopback.
inline std::vector<std::unique_ptr<Communicator>> make_hosts(const std::vector<int>& hosts) {
  const int n = std::accumulate(hosts.begin(), hosts.end(), 0);
  std::vector<transport::TcpConnections> wires(static_cast<std::size_t>(n));
  if (hosts.size() > 1) {
    wires = transport::connect_tcp_fabric(
        n, "127.0.0.1", transport::TcpFabricOptions{.checksum = true, .health = {}, .route = {}});
  }
  std::vector<std::unique_ptr<Communicator>> group;
  for (std::size_t h = 0; h < hosts.size(); ++h) {
    auto ranks = transport::make_inproc_fabric(hosts[h], nullptr, kTestArenaBytes);
    EXPECT_TRUE(ranks.ok()) << ranks.status().to_string();
    for (transport::InprocRank& mine : *ranks) {
      Group::Parts parts;
      parts.rank = static_cast<Rank>(group.size());
      parts.ranks_per_host = hosts;
      parts.host = "host" + std::to_string(h);
      parts.health = mine.health;
      parts.connections.host_group = std::move(mine.group);
      transport::TcpConnections& wire = wires[group.size()];
      parts.connections.network = std::move(wire.transport);
      parts.connections.lines.sockets = std::move(wire.others);
      parts.connections.lines.checksum = true;
      group.push_back(std::make_unique<Group>(std::move(parts)));
    }
  }
  return group;
}

using Body = std::function<void(Communicator&)>;

/// Runs `body` on every rank, each in a thread; leaves the groups well at the end.
inline void on_group(std::vector<std::unique_ptr<Communicator>> group, const Body& body,
                     bool finalize) {
  std::vector<std::thread> threads;
  for (auto& communicator : group) {
    threads.emplace_back([&, c = communicator.get()] {
      body(*c);
      if (finalize) EXPECT_OK(c->finalize(Deadline::after(std::chrono::seconds(20))));
    });
  }
  for (std::thread& t : threads) t.join();
}

inline void on_hosts(const std::vector<int>& hosts, const Body& body, bool finalize = true) {
  on_group(make_hosts(hosts), body, finalize);
}

inline void on_ranks(int n, const Body& body, bool finalize = true) {
  on_hosts({n}, body, finalize);
}

/// A private vector, or the same elements in the arena: both must work, also mixed between ranks.
template <class T>
class Memory {
 public:
  Memory(Communicator& c, std::vector<T> contents, bool in_arena)
      : arena_(in_arena ? &c.arena() : nullptr), private_(std::move(contents)) {
    data_ = private_.data();
    if (arena_ != nullptr) {
      data_ = static_cast<T*>(arena_->allocate(private_.size() * sizeof(T)));
      std::copy(private_.begin(), private_.end(), data_);
    }
  }
  ~Memory() {
    if (arena_ != nullptr) arena_->deallocate(data_);
  }
  Memory(const Memory&) = delete;
  std::span<T> span() { return {data_, private_.size()}; }
  Buffer buffer() { return span(); }
  std::vector<T> values() const { return {data_, data_ + private_.size()}; }

 private:
  transport::Arena* arena_;
  std::vector<T> private_;
  T* data_;
};

}  // namespace stormo::comm
