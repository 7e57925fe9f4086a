#include <stormo/transport/memory_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <string>
#include <utility>

#include <stormo/base/units.h>

namespace stormo::transport {

Result<MemoryFile> MemoryFile::create(const char* name, std::uint64_t bytes) {
  const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return errno_error("memfd_create");
  if (ftruncate(fd, static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    Status failure = errno_error(fmt::format("memory file of {}", format_bytes(bytes)));
    close(fd);
    return failure;
  }
  return map_pages(fd, bytes);
}

Result<MemoryFile> MemoryFile::map(int fd, std::uint64_t bytes) {
  struct stat info {};
  const int seals = fcntl(fd, F_GET_SEALS);
  if (fstat(fd, &info) != 0 || static_cast<std::uint64_t>(info.st_size) < bytes || seals < 0 ||
      (seals & F_SEAL_SHRINK) == 0) {
    close(fd);
    return Status(Code::kRefused, "a peer's memory file is too short or could shrink");
  }
  return map_pages(fd, bytes);
}

Result<MemoryFile> MemoryFile::anonymous(std::uint64_t bytes) { return map_pages(-1, bytes); }

Result<MemoryFile> MemoryFile::map_pages(int fd, std::uint64_t bytes) {
  const int sharing = fd >= 0 ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* p = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, sharing | MAP_NORESERVE, fd, 0);
  if (p == MAP_FAILED) {
    Status failure = errno_error(fmt::format(
        "mapping {} (is the address space limited? see 'ulimit -v')", format_bytes(bytes)));
    if (fd >= 0) close(fd);
    return failure;
  }
  MemoryFile file;
  file.data_ = static_cast<std::byte*>(p);
  file.size_ = bytes;
  file.fd_ = fd;
  return file;
}

void MemoryFile::advise_huge_pages() const {
  // advice: a kernel without huge pages for memory files says no, and nothing is lost
  static_cast<void>(madvise(data_, size_, MADV_HUGEPAGE));
}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) munmap(data_, size_);
  if (fd_ >= 0) close(fd_);
}

void MemoryFile::swap(MemoryFile& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
}

}  // namespace stormo::transport
