#include <gtest/gtest.h>
#include <stormo/transport/memory/arena.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/shm/host_exchange.h>
#include <sys/socket.h>

#include <chrono>
#include <future>
#include <memory>
#include <string>
#include <vector>

namespace stormo::transport {
namespace {

using namespace std::chrono_literals;

/// A process of the same user that has found the socket's name in /proc/net/unix.
Descriptor visit(const std::string& ticket) {
  const SocketAddress to = *unix_address(ticket.substr(0, ticket.find(' ')));
  Descriptor fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  EXPECT_EQ(::connect(fd.get(), reinterpret_cast<const sockaddr*>(&to.storage), to.length), 0);
  return fd;
}

TEST(HostExchange, SilentVisitorsAndWrongTokensDelayNobody) {
  constexpr int kRanks = 3;
  constexpr int kVisitors = 300;  // more than there are places
  const Deadline by = Deadline::after(60s);
  const auto listener = std::move(*HostListener::open());
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int r = 0; r < kRanks; ++r) {
    arenas.push_back(std::move(*Arena::create({.capacity_bytes = 1 << 20})));
  }
  auto zero =
      std::async(std::launch::async, [&] { return listener->host(kRanks, *arenas[0], by); });
  std::vector<Descriptor> visitors;
  for (int i = 0; i < kVisitors; ++i) visitors.push_back(visit(listener->ticket()));
  const std::string wrong(100, 'x');
  ASSERT_EQ(::send(visitors.back().get(), wrong.data(), wrong.size(), 0), 100);

  const auto start = std::chrono::steady_clock::now();
  std::vector<std::future<Result<HostParts>>> others;
  for (int r = 1; r < kRanks; ++r) {
    others.push_back(std::async(std::launch::async, [&, r] {
      return join_host(listener->ticket(), r, kRanks, *arenas[static_cast<std::size_t>(r)], by);
    }));
  }
  const auto first = zero.get();
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  for (auto& other : others) {
    const auto parts = other.get();
    EXPECT_TRUE(parts.ok()) << parts.status().to_string();
  }
  EXPECT_LT(std::chrono::steady_clock::now() - start, 3s) << "what one silent visitor used to take";
}

}  // namespace
}  // namespace stormo::transport
