#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include <stormo/base/status.h>

namespace stormo::transport {

/// A mapped stretch of memory: an anonymous memory file that other processes can map through its
/// descriptor, or private anonymous memory. Sparse: pages cost memory once touched. The file has no
/// name anywhere and vanishes with the last process that holds it.
class MemoryFile {
 public:
  /// A memfd of `bytes`, sealed against shrinking (a shrunk file kills its mappers with SIGBUS).
  static Result<MemoryFile> create(const char* name, std::uint64_t bytes);
  /// Maps a file received from a peer; refused unless it is at least `bytes` long and cannot
  /// shrink. Takes ownership of `fd`, on failure too.
  static Result<MemoryFile> map(int fd, std::uint64_t bytes);
  /// Private memory without a file: ranks as threads of one process.
  static Result<MemoryFile> anonymous(std::uint64_t bytes);

  MemoryFile() = default;
  MemoryFile(MemoryFile&& other) noexcept { swap(other); }
  MemoryFile& operator=(MemoryFile&& other) noexcept {
    swap(other);
    return *this;
  }
  ~MemoryFile();

  /// Asks for huge pages where the system grants them (transparent_hugepage/shmem_enabled=advise):
  /// fewer page faults, far fewer address look-ups. Without effect elsewhere.
  void advise_huge_pages() const;

  std::byte* data() const { return data_; }
  std::uint64_t size() const { return size_; }
  int fd() const { return fd_; }  ///< -1 for anonymous memory

 private:
  void swap(MemoryFile& other) noexcept;
  static Result<MemoryFile> map_pages(int fd, std::uint64_t bytes);

  std::byte* data_ = nullptr;
  std::uint64_t size_ = 0;
  int fd_ = -1;
};

}  // namespace stormo::transport
