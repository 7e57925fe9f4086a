#include <stormo/checkpoint/file/run_lock.h>

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <thread>

namespace stormo::checkpoint {
namespace {

constexpr Duration kLook = std::chrono::milliseconds(20);

}  // namespace

Status RunLock::take(const std::string& directory, Deadline by) {
  folder_ = Descriptor(::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!folder_.valid()) return errno_error("open " + directory);
  while (::flock(folder_.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return ok_status();  // no locks here
    if (by.expired()) {
      return invalid_argument("another run writes into '" + directory +
                              "'; wait for its end, or choose another folder");
    }
    std::this_thread::sleep_for(kLook);
  }
  return ok_status();
}

}  // namespace stormo::checkpoint
