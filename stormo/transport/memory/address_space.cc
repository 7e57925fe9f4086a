#include <stormo/transport/memory/address_space.h>

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>

namespace stormo::transport {
namespace {

std::uint64_t twice_the_memory() {
  struct sysinfo info {};
  if (sysinfo(&info) != 0) return std::uint64_t{64} << 30;
  return std::bit_ceil(std::uint64_t{info.totalram} * info.mem_unit) * 2;
}

/// What this process has mapped.
std::uint64_t mapped_bytes() {
  std::uint64_t pages = 0;
  std::ifstream("/proc/self/statm") >> pages;
  return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

}  // namespace

std::uint64_t arena_capacity(int ranks) {
  rlimit limit{};
  const std::uint64_t wanted = twice_the_memory();
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const std::uint64_t all = limit.rlim_cur;
  const std::uint64_t left = all - std::min(all, mapped_bytes());
  return std::min(wanted, left / 2 / static_cast<std::uint64_t>(std::max(1, ranks)));
}

}  // namespace stormo::transport
