#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/transport/memory/memory_file.h>

namespace stormo::transport {

/// A memory file that the ranks of a host map, and an allocator inside it. Peers can read and write
/// memory that is allocated here, so it can be sent without copies.
///
/// Blocks of less than a page have one of few sizes (four per power of two), and are reused for
/// blocks of the same size. Larger ones are whole pages, the first free ones that suffice: free
/// neighbours become one, so that freed memory is reused for any size before new one is touched.
/// Metadata is private to the process, only payload is shared. The file is sparse: it uses memory
/// only for pages that were touched, and for huge pages of allocations of 256 KiB or more, and of
/// all once it is larger than one. Thread-safe. After fork() the child must not use it: there
/// allocate() returns null and deallocate() does nothing.
class Arena {
 public:
  struct Options {
    /// Address space, not memory. 0: twice the memory of the machine.
    std::uint64_t capacity_bytes = 0;
    /// Private memory instead of a memory file: ranks as threads of one process.
    bool single_process = false;
  };
  struct Stats {
    std::uint64_t capacity_bytes = 0;
    std::uint64_t in_use_bytes = 0;   ///< handed out, with what blocks are rounded up by
    std::uint64_t peak_bytes = 0;     ///< highest in_use_bytes
    std::uint64_t touched_bytes = 0;  ///< ever allocated: the memory in use, rounded to huge pages
  };

  static Result<std::unique_ptr<Arena>> create(Options options);
  /// Keeps the arena until the process ends (it is never freed), because tensors in it may outlive
  /// every owner.
  static Arena& immortal(std::unique_ptr<Arena> arena);
  /// The Arena of this process, which all of its groups of processes use: made by the first call,
  /// whose capacity counts, and immortal. A forked child makes its own.
  static Result<Arena*> of_process(std::uint64_t capacity_bytes);
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  /// Uninitialised; aligned to 64 bytes, to 4096 from that size up. Null when the arena is
  /// exhausted or after fork.
  void* allocate(std::size_t bytes) noexcept;
  /// `p` must come from allocate() of this arena, or be null.
  void deallocate(void* p) noexcept;

  bool contains(const void* p) const noexcept {
    const auto* b = static_cast<const std::byte*>(p);
    return b >= file_.data() && b < file_.data() + file_.size();
  }
  /// Offset of `p`, by which peers find it in their mapping of this arena; contains(p) must be
  /// true.
  std::uint64_t offset_of(const void* p) const noexcept {
    return static_cast<std::uint64_t>(static_cast<const std::byte*>(p) - file_.data());
  }
  std::byte* base() const noexcept { return file_.data(); }
  std::uint64_t capacity() const noexcept { return file_.size(); }
  /// Descriptor of the memory file, -1 for single_process. Owned by the arena.
  int fd() const noexcept { return file_.fd(); }
  Stats stats() const;

 private:
  Arena() = default;
  std::uint64_t place_small(std::uint64_t bytes);
  std::uint64_t place_pages(std::uint64_t bytes);
  void free_pages(std::uint64_t begin, std::uint64_t bytes);
  void back(std::uint64_t begin, std::uint64_t end) noexcept;

  MemoryFile file_;
  int owner_pid_ = 0;
  mutable std::mutex mutex_;
  // offsets; of less than a page by size
  std::map<std::uint64_t, std::vector<std::uint64_t>> free_small_;
  std::map<std::uint64_t, std::uint64_t> free_pages_;  // bytes by offset: no two are neighbours
  std::unordered_map<const void*, std::uint64_t> size_of_;  // live blocks
  std::uint64_t next_ = 0;                                  // first byte never handed out
  std::uint64_t backed_ = 0;                                // end of the last huge page
  Stats stats_;
};

}  // namespace stormo::transport
