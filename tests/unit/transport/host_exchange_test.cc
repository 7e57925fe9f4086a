#include <gtest/gtest.h>
#include <stormo/transport/memory/arena.h>
#include <stormo/transport/net/socket.h>
#include <stormo/transport/shm/host_exchange.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <chrono>
#include <cstdint>
#include <fstream>
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
  EXPECT_LT(std::chrono::steady_clock::now() - start, 30s)
      << "ten silent visitors used to take that";
}

/// What the ranks of a host get, if they are threads that join as processes do.
std::vector<HostParts> exchange(const std::vector<std::unique_ptr<Arena>>& arenas) {
  const Deadline by = Deadline::after(60s);
  const auto listener = std::move(*HostListener::open());
  const int ranks = static_cast<int>(arenas.size());
  std::vector<std::future<Result<HostParts>>> joining;
  for (int r = 0; r < ranks; ++r) {
    joining.push_back(std::async(std::launch::async, [&, r] {
      Arena& arena = *arenas[static_cast<std::size_t>(r)];
      return r == 0 ? listener->host(ranks, arena, by)
                    : join_host(listener->ticket(), r, ranks, arena, by);
    }));
  }
  std::vector<HostParts> all;
  for (auto& one : joining) all.push_back(std::move(*one.get()));
  return all;
}

std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * 4096;
}

/// Until the times of the files have changed, as they do when a page is touched first. They tick
/// every few milliseconds.
void touch_pages(const std::vector<std::unique_ptr<Arena>>& arenas) {
  for (const auto& arena : arenas) {
    struct stat before {
    }, now{};
    fstat(arena->fd(), &before);
    do {
      auto* const page = static_cast<char*>(arena->allocate(8192));
      ASSERT_NE(page, nullptr) << "this kernel does not change the times";
      page[0] = 'x';
      fstat(arena->fd(), &now);
    } while (now.st_ctim.tv_nsec == before.st_ctim.tv_nsec);
  }
}

TEST(HostExchange, GroupsOfAProcessMapAPeersArenaOnce) {
  constexpr std::uint64_t kArena = std::uint64_t{1} << 30;
  std::vector<std::unique_ptr<Arena>> arenas;
  for (int r = 0; r < 2; ++r) {
    arenas.push_back(std::move(*Arena::create({.capacity_bytes = kArena})));
  }
  const std::uint64_t before = mapped_bytes();
  {
    std::vector<std::vector<HostParts>> groups;
    for (int i = 0; i < 20; ++i) {
      groups.push_back(exchange(arenas));
      if (i == 0) touch_pages(arenas);
    }
    EXPECT_LT(mapped_bytes() - before, 3 * kArena)
        << "each of the two arenas once, and the regions";
    std::byte* const there = groups.front()[0].arena_bases[1];
    EXPECT_EQ(groups.back()[0].arena_bases[1], there);
    groups.erase(groups.begin(), groups.end() - 1);  // the others go on
    void* const block = arenas[1]->allocate(64);
    static_cast<char*>(block)[0] = 'x';
    EXPECT_EQ(static_cast<char>(there[arenas[1]->offset_of(block)]), 'x');
  }
  EXPECT_LT(mapped_bytes(), before + kArena) << "what no group has is not mapped";
}

}  // namespace
}  // namespace stormo::transport
