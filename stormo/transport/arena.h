#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <unordered_map>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::transport {

/// A memory file that the ranks of a host map, and an allocator inside it. What is allocated here lies
/// where peers can read and write it: nothing has to be copied to be sent.
///
/// Size-class free lists; allocator metadata is private to the process, only payload is shared.
/// The file is sparse: pages cost memory once touched, and freed blocks are reused before new
/// ones are touched. Its length never changes (a shrinking file kills mappers with SIGBUS).
/// Thread-safe. After fork() the child must not use it: allocate() returns null there and
/// deallocate() does nothing.
class Arena {
 public:
  struct Options {
    /// Address space reserved, not memory. Default: twice the machine's (or cgroup's) memory.
    std::uint64_t capacity_bytes = 0;
    /// Map private anonymous memory instead of a memory file: ranks as threads of one process.
    bool single_process = false;
  };
  struct Stats {
    std::uint64_t capacity_bytes = 0;
    std::uint64_t in_use_bytes = 0;   ///< handed out, rounded to size classes
    std::uint64_t peak_bytes = 0;     ///< highest in_use_bytes
    std::uint64_t reserved_bytes = 0; ///< ever handed out to a size class
  };

  static Result<std::unique_ptr<Arena>> create(Options options);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// 64-byte aligned, uninitialised; null when the arena is exhausted or after fork.
  void* allocate(std::size_t bytes) noexcept;
  /// `p` must come from allocate() of this arena, or be null.
  void deallocate(void* p) noexcept;

  bool contains(const void* p) const noexcept {
    const auto* b = static_cast<const std::byte*>(p);
    return b >= base_ && b < base_ + capacity_;
  }
  /// Where peers find `p` in their mapping of this arena; contains(p) must hold.
  std::uint64_t offset_of(const void* p) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - base_);
  }
  std::byte* base() const noexcept { return base_; }
  std::uint64_t capacity() const noexcept { return capacity_; }
  /// Descriptor of the memory file, -1 for single_process. Owned by the arena.
  int fd() const noexcept { return fd_; }
  Stats stats() const;

 private:
  Arena() = default;
  void* take(std::size_t size_class);

  std::byte* base_ = nullptr;
  std::uint64_t capacity_ = 0;
  int fd_ = -1;
  int owner_pid_ = 0;

  mutable std::mutex mutex_;
  std::vector<std::vector<std::byte*>> free_;                  // by size class
  std::unordered_map<const void*, std::uint32_t> class_of_;    // live blocks
  std::uint64_t next_ = 0;                                     // bump pointer
  Stats stats_;
};

}  // namespace stormo::transport
