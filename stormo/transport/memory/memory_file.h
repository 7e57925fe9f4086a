#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <stormo/base/descriptor.h>
#include <stormo/base/status.h>

namespace stormo::transport {

/// Mapped memory: an anonymous memory file that other processes can map through its descriptor, or
/// private anonymous memory. Sparse: only touched pages use memory. The file has no name and is
/// freed with the last process that holds it. Core dumps do not contain it.
class MemoryFile {
 public:
  static constexpr std::uint64_t kHugePage = std::uint64_t{2} << 20;

  /// A memfd of `bytes`, sealed against shrinking (a shrunk file kills its mappers with SIGBUS).
  static Result<MemoryFile> create(const char* name, std::uint64_t bytes);
  /// Maps a file received from a peer; refused unless it is at least `bytes` long and cannot
  /// shrink.
  static Result<MemoryFile> map(Descriptor fd, std::uint64_t bytes);
  /// The same, mapped once for all in this process who ask for this file while others have it.
  static Result<std::shared_ptr<MemoryFile>> map_shared(Descriptor fd, std::uint64_t bytes);
  /// Private memory without a file: ranks as threads of one process.
  static Result<MemoryFile> anonymous(std::uint64_t bytes);

  MemoryFile() = default;
  MemoryFile(MemoryFile&& other) noexcept { swap(other); }
  MemoryFile& operator=(MemoryFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MemoryFile();

  /// Allocates the huge pages that overlap [begin, end) now. This saves most page faults, here and
  /// in other processes, and TLB misses. Needs Linux 6.1, but no setting and no privilege. False if
  /// the kernel cannot do it: pages are then allocated by faults, as without this call. Cost: about
  /// 0.2 ms for each page of 2 MiB, a quarter of what faults of 4 KiB take.
  bool back_with_huge_pages(std::uint64_t begin, std::uint64_t end) const;

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  int fd() const { return fd_.get(); }  ///< -1 for anonymous memory

 private:
  void swap(MemoryFile& other) noexcept;
  static Result<MemoryFile> map_pages(Descriptor fd, std::uint64_t bytes);

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  Descriptor fd_;
};

}  // namespace stormo::transport
