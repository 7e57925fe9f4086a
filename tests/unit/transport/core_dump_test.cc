#include <fcntl.h>
#include <gtest/gtest.h>
#include <stormo/base/temporary_folder.h>
#include <stormo/transport/memory/arena.h>
#include <stormo/transport/net/secret.h>
#include <stormo/transport/shm/host_region.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <memory>
#include <string>
#include <vector>

#include "tests/unit/transport/smaps.h"

/// A crash leaves a core file that shows its cause: without the ranks' shared memory, which may be
/// most of the machine's, and without the job's secret.
namespace stormo::transport {
namespace {

/// Whether core dumps leave out the mapping around `address`.
bool left_out_of_core(const void* address) {
  const std::string flags = smaps_value(address, "VmFlags:");
  EXPECT_NE(flags, "") << "no mapping at " << address;
  return (flags + " ").find(" dd ") != std::string::npos;
}

std::unique_ptr<Arena> make_arena(bool single_process) {
  auto arena = Arena::create({.capacity_bytes = 64 << 20, .single_process = single_process});
  EXPECT_TRUE(arena.ok()) << arena.status().to_string();
  return std::move(arena).value();
}

TEST(CoreDump, LeavesOutArenaRegionAndSecret) {
  const auto arena = make_arena(false);
  EXPECT_TRUE(left_out_of_core(arena->base()));
  EXPECT_TRUE(left_out_of_core(arena->base() + arena->capacity() - 1));
  // backing with huge pages must not split the mapping into one that is dumped
  EXPECT_TRUE(left_out_of_core(arena->allocate(std::size_t{8} << 20)));
  const auto peer = MemoryFile::map(Descriptor(dup(arena->fd())), arena->capacity());
  ASSERT_TRUE(peer.ok());
  EXPECT_TRUE(left_out_of_core(peer->data()));
  EXPECT_TRUE(left_out_of_core(make_arena(true)->base()));
  const auto region = HostRegion::create(2);
  ASSERT_TRUE(region.ok());
  EXPECT_TRUE(left_out_of_core(region->board(0, 0).data()));
  EXPECT_TRUE(left_out_of_core(region->ring_bytes(1, 0)));
  EXPECT_TRUE(left_out_of_core(Secret::random().bytes().data()));
  const auto ordinary = std::make_unique<int>(0);
  EXPECT_FALSE(left_out_of_core(ordinary.get())) << "the test sees what is dumped";
}

/// The child of the test: fills its memory and dies of a signal that dumps core in `folder`.
[[noreturn]] void crash_in(const std::filesystem::path& folder, const Secret& secret,
                           std::string ordinary, std::size_t shared_bytes) {
  const rlimit no_limit{RLIM_INFINITY, RLIM_INFINITY};
  (void)setrlimit(RLIMIT_CORE, &no_limit);
  std::filesystem::current_path(folder);
  const auto arena = make_arena(false);
  auto* shared = static_cast<char*>(arena->allocate(shared_bytes));
  std::memset(shared, 'x', shared_bytes);
  const Secret copy = secret;
  std::reverse(ordinary.begin(), ordinary.end());
  std::abort();
}

TEST(CoreDump, OfARealCrashHoldsNoSecretAndNoTensors) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "machine: a sanitizer's shadow memory is no part of a core";
#endif
  std::string pattern;
  std::getline(std::ifstream("/proc/sys/kernel/core_pattern") >> std::ws, pattern);
  rlimit limit{};
  (void)getrlimit(RLIMIT_CORE, &limit);
  if (pattern.empty() || pattern.find_first_of("|/") != std::string::npos ||
      limit.rlim_max != RLIM_INFINITY) {
    GTEST_SKIP() << "machine: core files of this machine go elsewhere: '" << pattern << "'";
  }
  const auto folder = TemporaryFolder::create("core-dump-test").take_or_throw();
  constexpr std::size_t kSharedBytes = std::size_t{48} << 20;
  const Secret secret = Secret::random();
  std::string ordinary = "what the core shows of ordinary memory " + std::to_string(getpid());
  const pid_t child = fork();
  if (child == 0) crash_in(folder.path(), secret, ordinary, kSharedBytes);
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFSIGNALED(status) && WCOREDUMP(status)) << "no core was dumped";

  const auto core_file = std::filesystem::directory_iterator(folder.path())->path();
  std::ifstream in(core_file, std::ios::binary);
  const std::string core{std::istreambuf_iterator<char>(in), std::istreambuf_iterator<char>()};
  std::reverse(ordinary.begin(), ordinary.end());
  EXPECT_NE(core.find(ordinary), std::string::npos) << "the test finds what is dumped";
  EXPECT_LT(core.size(), kSharedBytes);
  EXPECT_EQ(core.find(std::string(4096, 'x')), std::string::npos);
  const std::string key(secret.bytes().begin(), secret.bytes().end());
  EXPECT_EQ(core.find(key), std::string::npos);
  EXPECT_EQ(core.find(secret.to_hex()), std::string::npos);
}

}  // namespace
}  // namespace stormo::transport
