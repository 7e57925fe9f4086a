#include <stormo/data/mapped_file.h>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

namespace stormo::data {
namespace {

/// The content of an open file; `what` is its path.
Result<std::span<const std::byte>> map(int fd, const std::string& what) {
  struct stat info {};
  if (::fstat(fd, &info) != 0) return errno_error("look at " + what);
  if (!S_ISREG(info.st_mode)) {
    return Status(Code::kCorrupt, what + ": is not a regular file; set data.path to one");
  }
  const auto bytes = static_cast<std::size_t>(info.st_size);
  if (bytes == 0) return Status(Code::kCorrupt, what + ": is empty; write or fetch it again");
  void* start = ::mmap(nullptr, bytes, PROT_READ, MAP_PRIVATE, fd, 0);
  if (start == MAP_FAILED) return errno_error("map " + what);
  return std::span(static_cast<const std::byte*>(start), bytes);
}

}  // namespace

Result<std::shared_ptr<const MappedFile>> MappedFile::open(const std::string& path) {
  const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (fd < 0 && errno == ENOENT) {
    return Status(Code::kNotFound, path + " does not exist; set data.path to the folder with it");
  }
  if (fd < 0) return errno_error("open " + path);
  const Result<std::span<const std::byte>> bytes = map(fd, path);
  ::close(fd);
  if (!bytes.ok()) return bytes.status();
  return std::shared_ptr<const MappedFile>(new MappedFile(*bytes));
}

MappedFile::~MappedFile() { ::munmap(const_cast<std::byte*>(bytes_.data()), bytes_.size()); }

}  // namespace stormo::data
