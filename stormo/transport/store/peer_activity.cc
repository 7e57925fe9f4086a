#include <sys/socket.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <system_error>
#include <utility>

#include <stormo/transport/store/peer_activity.h>

namespace stormo::transport {
namespace {

namespace fs = std::filesystem;

/// Of proc(5); 0: there is none.
char state_letter(const fs::path& task) {
  std::string line;
  std::getline(std::ifstream(task / "stat"), line);
  const std::size_t name_end = line.rfind(')');  // the name may hold anything
  return name_end == std::string::npos || name_end + 2 >= line.size() ? '\0' : line[name_end + 2];
}

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
  std::error_code ended;
  for (fs::directory_iterator it("/proc/" + std::to_string(pid_) + "/task", ended), end;
       it != end && !ended; it.increment(ended)) {
    const char letter = state_letter(it->path());
    exists = exists || letter != '\0';
    waits_for_a_core = waits_for_a_core || letter == 'R';
    stopped = stopped || letter == 'T';
    sum += scheduled_nanoseconds(it->path());
  }
  const bool first = !std::exchange(looked_, true);
  const bool more = sum > std::exchange(nanoseconds_, sum);
  return exists && !stopped && (first || more || waits_for_a_core);
}

}  // namespace stormo::transport
