#include <stormo/launch/process/available_memory.h>

#include <gtest/gtest.h>
#include <sys/mman.h>

#include <cstring>

namespace stormo::launch {
namespace {

constexpr std::size_t kBytes = std::size_t{64} << 20;

/// How much more own_memory() is with `kBytes` of such memory in use.
double grows_by(int sharing) {
  const std::uint64_t before = own_memory();
  EXPECT_GT(before, 0u);
  void* const p =
      mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, sharing | MAP_ANONYMOUS, -1, /*offset=*/0);
  EXPECT_NE(p, MAP_FAILED);
  std::memset(p, 1, kBytes);
  const std::uint64_t with = own_memory();
  munmap(p, kBytes);
  return static_cast<double>(with) - static_cast<double>(before);
}

TEST(OwnMemory, IsWhatNoOtherProcessHas) {
  const auto all = static_cast<double>(kBytes);
  EXPECT_NEAR(grows_by(MAP_PRIVATE), all, 0.1 * all);
  EXPECT_NEAR(grows_by(MAP_SHARED), 0, 0.1 * all);
}

}  // namespace
}  // namespace stormo::launch
