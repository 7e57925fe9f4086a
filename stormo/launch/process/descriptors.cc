#include <stormo/launch/process/descriptors.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>

namespace stormo::launch {
namespace {

/// Standard streams, libraries, a few files of the program's own, strangers at a port (64).
constexpr std::int64_t kOthers = 128;
/// Enough for what programs open; a higher limit makes some of them slow.
constexpr rlim_t kComfortable = 65536;

}  // namespace

std::int64_t descriptors_needed(const DescriptorUse& use) {
  // two pipes and a process descriptor for each rank; the Store's connection to each, and the
  // register's
  const std::int64_t starter = kOthers + 3LL * use.local_ranks + 3LL * use.other_hosts +
                               (use.serves_store ? use.ranks : 0) +
                               (use.serves_register ? use.ranks : 0);
  // local rank 0, while memory is handed over: a connection, and the memory file twice; subgroups
  // connect to other hosts once more
  const std::int64_t rank =
      kOthers + 3LL * use.local_ranks + 2LL * (use.ranks - use.local_ranks) * use.sockets;
  return std::max(starter, use.local_ranks > 0 ? rank : 0);
}

Status provide_descriptors(const DescriptorUse& use) {
  const auto needed = static_cast<rlim_t>(descriptors_needed(use));
  struct rlimit limit {};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return errno_error("read the limit of open files");
  if (limit.rlim_max < needed)
    return invalid_argument(
        fmt::format("{} ranks, {} of them on this host, need {} open files in one process, and the "
                    "limit is {}; raise it (ulimit -Hn, or LimitNOFILE of the service) or start "
                    "fewer ranks",
                    use.ranks, use.local_ranks, needed, limit.rlim_max));
  const rlim_t wanted = std::min(limit.rlim_max, std::max(needed, kComfortable));
  if (limit.rlim_cur >= wanted) return {};
  limit.rlim_cur = wanted;
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? Status{} : errno_error("raise ulimit -n");
}

void fill_standard_descriptors() {
  int fd = 0;
  do fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  while (fd >= 0 && fd <= STDERR_FILENO);
  if (fd >= 0) ::close(fd);
}

}  // namespace stormo::launch
