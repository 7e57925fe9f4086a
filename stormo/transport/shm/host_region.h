#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <stormo/base/status.h>
#include <stormo/transport/memory/memory_file.h>
#include <stormo/transport/memory/wait.h>
#include <stormo/transport/shm/peer_memory.h>
#include <stormo/transport/shm/peer_process.h>

namespace stormo::transport {

/// One rank's part of the host region.
struct Cell {
  Flag arrived;   ///< phases that the owner has reached; raised by the owner
  Flag doorbell;  ///< rung by peers after they wrote to, or read from, a ring of the owner
  alignas(64) std::atomic<std::uint32_t> left{0};  ///< 1 once the owner has finished well
  std::atomic<std::uint32_t> reaches_all{0};  ///< 1 once the owner has read memory of every peer
  std::atomic<std::uint32_t> inside{0};  ///< 1 while the owner uses memory of its peers (Fence)
  PeerMemory::Home home;                 ///< of the owner; valid once it has arrived
  std::uintptr_t probe_at = 0;  ///< where the owner's memory holds `probe`; valid as `home` is
  std::uint64_t probe = 0;
  ProcessName process;                               ///< of the owner; valid as `home` is
  alignas(64) std::atomic<std::uint32_t> closed{0};  ///< in the first cell: 1 once the group failed
};

/// Bytes in flight from one rank to another: single producer, single consumer.
/// Counters run modulo 2^32; `written - read` bytes wait to be read.
struct RingHeader {
  alignas(64) std::atomic<std::uint32_t> written{0};
  alignas(64) std::atomic<std::uint32_t> read{0};
};

/// The one region that all ranks of a host share besides their Arenas: cells, two boards and two
/// notes per rank for what it posts about an operation (opaque here; they alternate, so that a slow
/// reader of one operation is never overwritten by the next), and a ring for each ordered pair of
/// ranks. Created by one rank, all zeros; flags are its only synchronisation.
class HostRegion {
 public:
  static constexpr std::size_t kBoardBytes = 36 << 10;
  static constexpr std::size_t kNoteBytes = 24;  ///< beside the arrival flag
  static constexpr std::uint32_t kRingBytes = 256 * 1024;
  static constexpr int kMaxRanks = 1000;

  /// kInvalidArgument unless 1 <= ranks <= kMaxRanks.
  static Result<HostRegion> create(int ranks);
  static Result<HostRegion> map(int fd, int ranks);  ///< takes the descriptor
  static Result<HostRegion> anonymous(int ranks);    ///< for threads of one process

  int ranks() const { return ranks_; }
  int fd() const { return file_.fd(); }
  Cell& cell(int rank) const {
    return *reinterpret_cast<Cell*>(file_.data() + static_cast<std::size_t>(rank) * kCellStride);
  }
  /// 1 once the group has failed: nobody begins to use memory of others any more (Fence).
  std::atomic<std::uint32_t>& closed() const { return cell(0).closed; }
  std::span<std::byte, kBoardBytes> board(int rank, unsigned parity) const {
    const auto index = static_cast<std::size_t>(rank) * 2 + parity % 2;
    return std::span<std::byte, kBoardBytes>(boards_ + index * kBoardBytes, kBoardBytes);
  }
  std::span<std::byte, kNoteBytes> note(int rank, unsigned parity) const {
    std::byte* p = cell(rank).arrived.beside.data() + parity % 2 * kNoteBytes;
    return std::span<std::byte, kNoteBytes>(p, kNoteBytes);
  }
  /// Where the rank ran when it last arrived: the number of the core, plus one; 0: unknown. On the
  /// line of the arrival flag, as the notes are.
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
  HostRegion(MemoryFile file, int ranks);
  static std::size_t boards_offset(int ranks);
  static std::size_t rings_offset(int ranks);
  static std::uint64_t size_for(int ranks);
  static Status check_ranks(int ranks);
  std::size_t ring_offset(int from, int to) const;

  MemoryFile file_;
  int ranks_ = 0;
  std::byte* boards_ = nullptr;
};

}  // namespace stormo::transport
