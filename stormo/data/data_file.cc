#include <stormo/data/data_file.h>

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <exception>

namespace stormo::data {
namespace {

const char* kind_of(mode_t mode) {
  if (S_ISDIR(mode)) return "a folder";
  if (S_ISFIFO(mode)) return "a pipe";
  if (S_ISSOCK(mode)) return "a socket";
  return "a device";
}

}  // namespace

Result<std::shared_ptr<const DataFile>> DataFile::open(const std::string& path) {
  // Without O_NONBLOCK the open of a pipe would wait for somebody who writes.
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  if (fd < 0 && errno == ENOENT) {
    return Status(Code::kNotFound, path + " does not exist; check the path (data.path in recipes)");
  }
  if (fd < 0) return errno_error("open " + path);
  const std::shared_ptr<DataFile> file(new DataFile(path, fd));
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_error("look at " + path);
  if (!S_ISREG(info.st_mode)) {
    return invalid_argument(path + " is " + kind_of(info.st_mode) +
                            ", no file; copy what it gives into a file and name that");
  }
  file->size_ = static_cast<std::uint64_t>(info.st_size);
  return std::shared_ptr<const DataFile>(file);
}

DataFile::~DataFile() { ::close(fd_); }

Status DataFile::read(std::uint64_t offset, std::span<std::byte> out) const {
  while (!out.empty()) {
    const ssize_t n = ::pread(fd_, out.data(), out.size(), static_cast<off_t>(offset));
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return errno_error("read " + path_);
    if (n == 0) {
      return Status(Code::kCorrupt,
                    path_ + " became shorter while it was read; leave it alone during a run");
    }
    out = out.subspan(static_cast<std::size_t>(n));
    offset += static_cast<std::uint64_t>(n);
  }
  return {};
}

Result<std::string> DataFile::read_front(std::uint64_t most) const {
  std::string bytes;
  try {
    bytes.resize(std::min(size_, most));
  } catch (const std::exception&) {
    return Status(Code::kExhausted,
                  path_ + ": not enough memory for its " + std::to_string(size_) + " bytes");
  }
  STORMO_RETURN_IF_ERROR(read(0, std::as_writable_bytes(std::span(bytes))));
  return bytes;
}

Result<int> DataFile::duplicate() const {
  const int fd = ::fcntl(fd_, F_DUPFD_CLOEXEC, 0);
  if (fd < 0) return errno_error("open " + path_);
  return fd;
}

Result<std::string> read_data_file(const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const auto file, DataFile::open(path));
  return file->read_front();
}

}  // namespace stormo::data
