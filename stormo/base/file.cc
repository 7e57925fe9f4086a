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

Result<Descriptor> open_regular(const std::string& path) {
  // Without O_NONBLOCK the open of a pipe would wait for somebody who writes.
  Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK));
  if (!file.valid() && errno == ENOENT) return Status(Code::kNotFound, path + " does not exist");
  if (!file.valid()) return errno_error("open " + path);
  struct stat info {};
  if (::fstat(file.get(), &info) != 0) return errno_error("look at " + path);
  if (S_ISREG(info.st_mode)) return file;
  return invalid_argument(path + " is " + kind_of(info.st_mode) + ", no file");
}

Status sync_path(const std::string& path) {
  const Descriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!file.valid()) return errno_error("open " + path);
  return ::fsync(file.get()) == 0 ? ok_status() : errno_error("sync " + path);
}

}  // namespace stormo
