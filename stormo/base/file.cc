#include <stormo/base/file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <fstream>

namespace stormo {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

std::string first_line(const std::filesystem::path& path) {
  std::ifstream in(path);
  std::string line;
  std::getline(in, line);
  return line;
}

Result<int> open_regular(const std::string& path) {
  // Without O_NONBLOCK the open of a pipe would wait for somebody who writes.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) return Status(Code::kNotFound, path + " does not exist");
  if (fd < 0) return errno_error("open " + path);
  struct stat info {};
  Status failure;
  if (::fstat(fd, &info) != 0) {
    failure = errno_error("look at " + path);
  } else if (!S_ISREG(info.st_mode)) {
    failure = invalid_argument(path + " is " + kind_of(info.st_mode) + ", no file");
  }
  if (failure.ok()) return fd;
  ::close(fd);
  return failure;
}

Status sync_path(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno_error("open " + path);
  const bool synced = ::fsync(fd) == 0;
  const Status failure = synced ? ok_status() : errno_error("sync " + path);
  ::close(fd);
  return failure;
}

}  // namespace stormo
