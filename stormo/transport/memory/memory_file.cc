#include <stormo/transport/memory/memory_file.h>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include <stormo/base/units.h>

namespace stormo::transport {
namespace {

constexpr std::uint64_t kSmallPage = 4096;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack

/// Address space for `bytes`, aligned so that huge pages of a file can be mapped as such.
void* reserve_aligned(std::uint64_t bytes) {
  constexpr std::uint64_t align = MemoryFile::kHugePage;
  const std::uint64_t mapped = (bytes + kSmallPage - 1) / kSmallPage * kSmallPage;
  const int flags = MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE;
  void* const p = mmap(nullptr, mapped + align, PROT_NONE, flags, -1, 0);
  if (p == MAP_FAILED) return p;
  auto* const first = static_cast<std::byte*>(p);
  const std::uint64_t before = (align - reinterpret_cast<std::uintptr_t>(p) % align) % align;
  if (before > 0) munmap(first, before);
  munmap(first + before + mapped, align - before);
  return first + before;
}

/// Of a file that is mapped: no other file has its number meanwhile. Times are no part of it: they
/// change when a page is touched first.
using FileId = std::pair<dev_t, ino_t>;

Result<FileId> id_of(int fd) {
  struct stat info {};
  if (fstat(fd, &info) != 0) return errno_error("a peer's memory file");
  return FileId(info.st_dev, info.st_ino);
}

}  // namespace

Result<MemoryFile> MemoryFile::create(const char* name, std::uint64_t bytes) {
  Descriptor fd(memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return errno_error("memfd_create");
  if (ftruncate(fd.get(), static_cast<off_t>(bytes)) != 0 ||
      fcntl(fd.get(), F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW) != 0) {
    return errno_error(fmt::format("memory file of {}", format_bytes(bytes)));
  }
  return map_pages(std::move(fd), bytes);
}

Result<MemoryFile> MemoryFile::map(Descriptor fd, std::uint64_t bytes) {
  struct stat info {};
  const int seals = fcntl(fd.get(), F_GET_SEALS);
  if (fstat(fd.get(), &info) != 0 || static_cast<std::uint64_t>(info.st_size) < bytes ||
      seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return Status(Code::kRefused, "a peer's memory file is too short or could shrink");
  }
  return map_pages(std::move(fd), bytes);
}

Result<std::shared_ptr<MemoryFile>> MemoryFile::map_shared(Descriptor fd, std::uint64_t bytes) {
  static std::mutex mutex;
  // never destroyed: a group may be left at the end of the process
  static auto* const all = new std::map<FileId, std::weak_ptr<MemoryFile>>;
  STORMO_ASSIGN_OR_RETURN(const FileId id, id_of(fd.get()));
  const std::lock_guard lock(mutex);
  const auto known = all->find(id);
  if (known != all->end()) {
    auto file = known->second.lock();
    if (file && file->size() >= bytes) return file;
  }
  STORMO_ASSIGN_OR_RETURN(MemoryFile file, map(std::move(fd), bytes));
  auto shared = std::make_shared<MemoryFile>(std::move(file));
  std::erase_if(*all, [](const auto& one) { return one.second.expired(); });
  all->insert_or_assign(id, shared);
  return shared;
}

Result<MemoryFile> MemoryFile::anonymous(std::uint64_t bytes) { return map_pages({}, bytes); }

Result<MemoryFile> MemoryFile::map_pages(Descriptor fd, std::uint64_t bytes) {
  const int sharing = fd.valid() ? MAP_SHARED : MAP_PRIVATE | MAP_ANONYMOUS;
  void* p = reserve_aligned(bytes);
  if (p != MAP_FAILED) {
    p = mmap(p, bytes, PROT_READ | PROT_WRITE, sharing | MAP_NORESERVE | MAP_FIXED, fd.get(), 0);
  }
  if (p == MAP_FAILED) {
    return errno_error(fmt::format("mapping {} (is the address space limited? see 'ulimit -v')",
                                   format_bytes(bytes)));
  }
  // A core dump of a rank would hold every rank's memory, and much of it: gradients, not causes.
  (void)madvise(p, bytes, MADV_DONTDUMP);
  MemoryFile file;
  file.data_ = static_cast<std::byte*>(p);
  file.size_ = bytes;
  file.fd_ = std::move(fd);
  return file;
}

bool MemoryFile::back_with_huge_pages(std::uint64_t begin, std::uint64_t end) const {
  begin = begin / kHugePage * kHugePage;
  end = std::min((end + kHugePage - 1) / kHugePage * kHugePage, size_);
  for (std::uint64_t page = begin; page < end; page += kHugePage) {
    // the kernel takes a page as huge only when something of it is there
    if (madvise(data_ + page, kSmallPage, MADV_POPULATE_READ) != 0) return false;
  }
  return begin >= end || madvise(data_ + begin, end - begin, kCollapse) == 0;
}

MemoryFile::~MemoryFile() {
  if (data_ != nullptr) munmap(data_, size_);
}

void MemoryFile::swap(MemoryFile& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  std::swap(fd_, other.fd_);
}

}  // namespace stormo::transport
