#include <stormo/transport/memory/address_space.h>

#include <sys/resource.h>
#include <sys/sysinfo.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <fstream>

#include <stormo/base/units.h>

namespace stormo::transport {
namespace {

constexpr std::uint64_t kLeastFile = std::uint64_t{1} << 30;

/// RLIM_INFINITY is the largest number.
rlim_t limit_of_files() {
  rlimit limit{};
  return ::getrlimit(RLIMIT_FSIZE, &limit) == 0 ? limit.rlim_cur : RLIM_INFINITY;
}

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
  const std::uint64_t wanted = std::min<std::uint64_t>(twice_the_memory(), limit_of_files());
  if (::getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return wanted;
  const std::uint64_t all = limit.rlim_cur;
  const std::uint64_t left = all - std::min(all, mapped_bytes());
  return std::min(wanted, left / 2 / static_cast<std::uint64_t>(std::max(1, ranks)));
}

Status check_file_limit() {
  const std::uint64_t limit = limit_of_files();
  if (limit >= kLeastFile) return {};
  return invalid_argument("ranks of a host share memory in files, and a file may have at most " +
                          format_bytes(limit) + " here; raise the limit to " +
                          format_bytes(kLeastFile) +
                          " or more (ulimit -f, or LimitFSIZE of the service)");
}

}  // namespace stormo::transport
