#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <utility>

#include <stormo/base/proc.h>
#include <stormo/transport/store/peer_activity.h>

namespace stormo::transport {
namespace {

namespace fs = std::filesystem;

/// What the scheduler has counted for a thread: running, and waiting for a core.
std::uint64_t scheduled_nanoseconds(const fs::path& task) {
  std::uint64_t running = 0, waiting = 0;
  std::ifstream(task / "schedstat") >> running >> waiting;
  return running + waiting;
}

}  // namespace

PeerActivity PeerActivity::of_socket(int fd) {
  ucred peer{};
  socklen_t size = sizeof peer;
  const bool known = ::getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0;
  return PeerActivity(known ? peer.pid : 0);
}

bool PeerActivity::ran() {
  if (pid_ <= 0) return false;
  std::uint64_t sum = 0;
  bool exists = false, waits_for_a_core = false, stopped = false;
  const fs::path tasks = "/proc/" + std::to_string(pid_) + "/task";
  for (const pid_t thread : numbers_in(tasks)) {
    const fs::path task = tasks / std::to_string(thread);
    const auto state = process_state(task);
    exists = exists || state;
    waits_for_a_core = waits_for_a_core || (state && state->letter == 'R');
    stopped = stopped || (state && state->letter == 'T');
    sum += scheduled_nanoseconds(task);
  }
  const bool first = !std::exchange(looked_, true);
  const bool more = sum > std::exchange(nanoseconds_, sum);
  return exists && !stopped && (first || more || waits_for_a_core);
}

}  // namespace stormo::transport
