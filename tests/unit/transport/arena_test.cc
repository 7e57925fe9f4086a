#include <stormo/transport/memory/arena.h>

#include <gtest/gtest.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>
#include <vector>

#include <stormo/base/rng.h>

#include "tests/unit/transport/smaps.h"

namespace stormo::transport {
namespace {

std::unique_ptr<Arena> make(std::uint64_t bytes = std::uint64_t{64} << 20) {
  auto arena = Arena::create({.capacity_bytes = bytes});
  EXPECT_TRUE(arena.ok()) << arena.status().to_string();
  return std::move(arena).value();
}

TEST(Arena, HandsOutAlignedDisjointBlocks) {
  const auto arena = make();
  Rng rng(1, "arena_test");
  std::vector<std::pair<unsigned char*, std::size_t>> live;
  for (int i = 0; i < 2000; ++i) {
    const std::size_t bytes = 1 + rng.below(i % 10 == 0 ? 200'000 : 3000);
    auto* p = static_cast<unsigned char*>(arena->allocate(bytes));
    ASSERT_NE(p, nullptr);
    EXPECT_EQ(reinterpret_cast<std::uintptr_t>(p) % (bytes >= 4096 ? 4096 : 64), 0u);
    ASSERT_TRUE(arena->contains(p) && arena->contains(p + bytes - 1));
    std::memset(p, i % 251, bytes);
    live.emplace_back(p, bytes);
    if (live.size() > 100) {
      const std::size_t k = rng.below(live.size());
      const auto [freed, size] = live[k];
      ASSERT_EQ(std::count(freed, freed + size, freed[0]), static_cast<std::ptrdiff_t>(size))
          << "blocks overlap";
      arena->deallocate(freed);
      live.erase(live.begin() + static_cast<std::ptrdiff_t>(k));
    }
  }
  for (const auto& [p, bytes] : live) {
    for (std::size_t i = 1; i < bytes; ++i) ASSERT_EQ(p[i], p[0]) << "blocks overlap";
  }
}

TEST(Arena, ReusesFreedBlocksBeforeTouchingNewMemory) {
  const auto arena = make();
  void* first = arena->allocate(100'000);
  arena->deallocate(first);
  const auto touched = arena->stats().touched_bytes;
  for (int i = 0; i < 100; ++i) {
    void* again = arena->allocate(100'000);
    EXPECT_EQ(again, first);
    arena->deallocate(again);
  }
  EXPECT_EQ(arena->stats().touched_bytes, touched);
  EXPECT_EQ(arena->stats().in_use_bytes, 0u);
}

/// Pages of this process, in bytes, that are mapped as huge ones at `address`.
std::uint64_t huge_bytes_at(const void* address) {
  return std::strtoull(smaps_value(address, "ShmemPmdMapped:").c_str(), nullptr, 10) << 10;
}

TEST(Arena, LargeBlocksLieInHugePagesHereAndAtThePeer) {
  constexpr std::uint64_t kPage = MemoryFile::kHugePage;
  const auto probe = MemoryFile::create("probe", kPage);
  ASSERT_TRUE(probe.ok());
  if (!probe->back_with_huge_pages(0, kPage))
    GTEST_SKIP() << "machine: this kernel has no MADV_COLLAPSE";
  const auto arena = make();
  auto* small = static_cast<char*>(arena->allocate(1000));
  std::strcpy(small, "kept");
  auto* large = static_cast<char*>(arena->allocate(5 * kPage));
  EXPECT_STREQ(small, "kept");
  EXPECT_GE(huge_bytes_at(large), 5 * kPage);
  auto peer = MemoryFile::map(Descriptor(dup(arena->fd())), arena->capacity());
  ASSERT_TRUE(peer.ok());
  std::memset(peer->data() + arena->offset_of(large), 7, 5 * kPage);
  EXPECT_EQ(large[5 * kPage - 1], 7);
  EXPECT_GE(huge_bytes_at(peer->data()), 5 * kPage);
}

TEST(Arena, LosesLessThanAPageOrAFifth) {
  const auto arena = make(std::uint64_t{1} << 30);
  for (std::size_t bytes = 64; bytes < 10'000'000; bytes = bytes * 9 / 8 + 1) {
    const auto before = arena->stats().in_use_bytes;
    ASSERT_NE(arena->allocate(bytes), nullptr);
    const auto taken = arena->stats().in_use_bytes - before;
    EXPECT_GE(taken, bytes);
    EXPECT_LT(taken, bytes + 4096);
    EXPECT_LE(taken * 4, bytes * 5 + 4 * std::max<std::size_t>(64, bytes / 4096 * 4096)) << bytes;
  }
}

TEST(Arena, FreedMemoryIsReusedForOtherSizes) {
  constexpr std::size_t kMiB = 1 << 20;
  const auto arena = make();
  const auto use = [&](std::size_t count, std::size_t bytes) {
    std::vector<void*> blocks;
    for (std::size_t i = 0; i < count; ++i) blocks.push_back(arena->allocate(bytes));
    for (void* block : blocks) arena->deallocate(block);
  };
  use(2, 8 * kMiB);
  EXPECT_EQ(arena->stats().touched_bytes, 16 * kMiB);
  use(16, kMiB);
  use(3, 5 * kMiB + 1);
  use(1, 16 * kMiB);
  EXPECT_EQ(arena->stats().touched_bytes, 16 * kMiB);
  use(1, 16 * kMiB + 1);
  EXPECT_EQ(arena->stats().touched_bytes, 16 * kMiB + 4096);
}

TEST(Arena, ExhaustionIsNullNotDeath) {
  const auto arena = make(1 << 20);
  EXPECT_EQ(arena->allocate(std::size_t{2} << 20), nullptr);
  EXPECT_EQ(arena->allocate(SIZE_MAX), nullptr);
  void* most = arena->allocate(900'000);
  EXPECT_NE(most, nullptr);
  EXPECT_EQ(arena->allocate(900'000), nullptr);
  arena->deallocate(most);
  EXPECT_NE(arena->allocate(900'000), nullptr);
}

TEST(Arena, IsSeenByWhoMapsItsFile) {
  const auto arena = make();
  auto* mine = static_cast<int*>(arena->allocate(4096));
  *mine = 41;
  auto peer = MemoryFile::map(Descriptor(dup(arena->fd())), arena->capacity());
  ASSERT_TRUE(peer.ok()) << peer.status().to_string();
  auto* theirs = reinterpret_cast<int*>(peer->data() + arena->offset_of(mine));
  EXPECT_EQ(*theirs, 41);
  *theirs = 42;
  EXPECT_EQ(*mine, 42);
}

TEST(Arena, AChildAfterForkGetsNothingAndFreesNothing) {
  const auto arena = make();
  void* block = arena->allocate(100);
  const pid_t child = fork();
  if (child == 0) {
    const bool refused = arena->allocate(100) == nullptr;
    arena->deallocate(block);
    _exit(refused ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
  EXPECT_NE(arena->allocate(100), block);
}

TEST(Arena, OfAProcessIsOneAndAChildMakesItsOwn) {
  const auto first = Arena::of_process(std::uint64_t{64} << 20);
  ASSERT_TRUE(first.ok()) << first.status().to_string();
  EXPECT_EQ(*Arena::of_process(std::uint64_t{128} << 20), *first);
  EXPECT_NE((*first)->allocate(100), nullptr);
  const pid_t child = fork();
  if (child == 0) {
    const auto own = Arena::of_process(std::uint64_t{64} << 20);
    const bool is_new = own.ok() && *own != *first && (*own)->allocate(100) != nullptr;
    _exit(is_new && *Arena::of_process(0) == *own ? 0 : 1);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  EXPECT_EQ(status, 0);
}

TEST(MemoryFile, RefusesAFileThatCouldShrink) {
  const int fd = memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  ASSERT_GE(fd, 0);
  ASSERT_EQ(ftruncate(fd, 1 << 20), 0);
  EXPECT_EQ(MemoryFile::map(Descriptor(fd), 1 << 20).status().code(), Code::kRefused);
  const auto arena = make(1 << 20);
  EXPECT_EQ(MemoryFile::map(Descriptor(dup(arena->fd())), 1 << 30).status().code(), Code::kRefused)
      << "too short";
}

}  // namespace
}  // namespace stormo::transport
