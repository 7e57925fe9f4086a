#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>

#include <stormo/base/status.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/memory/wait.h>
#include <stormo/transport/shm/peer_memory.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::transport {

/// One rank's part of the host region.
struct Cell {
  Flag arrived;   ///< arrival flag: phases that the owner has reached
  Flag doorbell;  ///< rung by peers after they wrote to, or read from, a ring of the owner
  alignas(64) std::atomic<std::uint32_t> left{0};  ///< 1 once the owner has left in order
  std::atomic<std::uint32_t> reaches_all{0};  ///< 1 once the owner has read memory of every peer
  std::atomic<std::uint32_t> inside{0};  ///< 1 while the owner uses memory of its peers (Fence)
  /// 1 once the owner has ended sends that peers may know of: it may use their memory again.
  std::atomic<std::uint32_t> sends_ended{0};
  PeerMemory::Home home;        ///< of the owner; valid once it has arrived
  std::uintptr_t probe_at = 0;  ///< address of `probe` in the owner; valid as `home` is
  std::uint64_t probe = 0;
  ProcessName process;                               ///< of the owner; valid as `home` is
  alignas(64) std::atomic<std::uint32_t> closed{0};  ///< in the first cell: 1 once the group failed
};

/// A ring buffer from one rank to another: single producer, single consumer. Counters run modulo
/// 2^32; `written - read` bytes wait to be read.
struct RingHeader {
  alignas(64) std::atomic<std::uint32_t> written{0};
  alignas(64) std::atomic<std::uint32_t> read{0};
};

/// The shared memory of the ranks of a host besides their Arenas: cells; two boards and two notes
/// per rank for its postings; and a ring for each ordered pair of ranks. Boards alternate between
/// operations, so that a posting is not overwritten while a slow rank still reads it. Created by
/// one rank, initially zero; synchronised only by flags.
class HostRegion {
 public:
  static constexpr std::size_t kBoardBytes = 36 << 10;
  static constexpr std::size_t kNoteBytes = 24;  ///< on the cache line of the arrival flag
  static constexpr std::uint32_t kRingBytes = 256 * 1024;
  static constexpr int kMaxRanks = 1000;

  /// kInvalidArgument unless 1 <= ranks <= kMaxRanks.
  static Result<HostRegion> create(int ranks);
  /// Ranks that are threads of one process share one mapping.
  static Result<HostRegion> map(Descriptor fd, int ranks);
  static Result<HostRegion> anonymous(int ranks);  ///< for threads of one process

  int ranks() const { return ranks_; }
  int fd() const { return file_->fd(); }
  Cell& cell(int rank) const {
    return *reinterpret_cast<Cell*>(file_->data() + static_cast<std::size_t>(rank) * kCellStride);
  }
  /// 1 once the group has failed: no rank may start to access memory of others (Fence).
  std::atomic<std::uint32_t>& closed() const { return cell(0).closed; }
  std::span<std::byte, kBoardBytes> board(int rank, unsigned parity) const {
    const auto index = static_cast<std::size_t>(rank) * 2 + parity % 2;
    return std::span<std::byte, kBoardBytes>(boards_ + index * kBoardBytes, kBoardBytes);
  }
  std::span<std::byte, kNoteBytes> note(int rank, unsigned parity) const {
    std::byte* p = cell(rank).arrived.beside.data() + parity % 2 * kNoteBytes;
    return std::span<std::byte, kNoteBytes>(p, kNoteBytes);
  }
  /// The core on which the rank ran when it last arrived: its number plus one; 0: unknown. On the
  /// cache line of the arrival flag, like the notes.
  std::atomic<std::int32_t>& core(int rank) const {
    static_assert(2 * kNoteBytes + sizeof(std::atomic<std::int32_t>) <= Flag::kBesideBytes);
    std::byte* p = cell(rank).arrived.beside.data() + 2 * kNoteBytes;
    return *reinterpret_cast<std::atomic<std::int32_t>*>(p);
  }
  RingHeader& ring_header(int from, int to) const;
  std::byte* ring_bytes(int from, int to) const;

 private:
  static constexpr std::size_t kCellStride =
      (sizeof(Cell) + 127) / 128 * 128;  // no pair prefetch across cells
  HostRegion(std::shared_ptr<MemoryFile> file, int ranks);
  static std::size_t boards_offset(int ranks);
  static std::size_t rings_offset(int ranks);
  static std::uint64_t size_for(int ranks);
  static Status check_ranks(int ranks);
  std::size_t ring_offset(int from, int to) const;

  std::shared_ptr<MemoryFile> file_;
  int ranks_ = 0;
  std::byte* boards_ = nullptr;
};

}  // namespace stormo::transport
