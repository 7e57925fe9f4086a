#pragma once

#include <memory>
#include <span>
#include <vector>

#include <stormo/base/ids.h>
#include <stormo/base/status.h>
#include <stormo/transport/health.h>
#include <stormo/transport/memory/arena.h>
#include <stormo/transport/memory/wait.h>
#include <stormo/transport/shm/fence.h>
#include <stormo/transport/shm/host_region.h>
#include <stormo/transport/shm/peer_memory.h>

namespace stormo::transport {

/// The parts of a HostGroup: the result of host_exchange or make_inproc_fabric.
struct HostParts {
  int rank = 0;
  int cores = 1;  ///< cores that the ranks of this host may use together (union of affinity masks)
  std::shared_ptr<HostRegion> region;
  Arena* arena = nullptr;               ///< of this rank; outlives the group
  std::vector<std::byte*> arena_bases;  ///< address of each rank's arena in this process
  /// Mappings behind arena_bases, by rank but for this one; groups of a process share them. Empty:
  /// the ranks are threads of one process.
  std::vector<std::shared_ptr<MemoryFile>> peer_arenas;
  OnStopped on_stopped = OnStopped::kEnd;
};

/// The ranks of one host, as seen by one of them: their Arenas, mapped into this process, their
/// cells and boards, and the barrier. One thread at a time runs operations; any thread may use the
/// region and the fence, read addresses and memory, and call leave().
///
/// Protocol of an operation: write note() and board(), arrive(), await_all(), read peers' boards.
/// If peers' memory is accessed: fence().enter(), access it, arrive(), await_all(),
/// fence().leave(). next_operation() switches between two boards. When an operation fails, call
/// fence().close() before its buffers are used again.
class HostGroup {
 public:
  HostGroup(HostParts parts, std::shared_ptr<Health> health);

  int rank() const { return parts_.rank; }
  int size() const { return parts_.region->ranks(); }
  Arena& arena() const { return *parts_.arena; }
  const Health& health() const { return *health_; }
  Fence& fence() { return fence_; }
  const std::shared_ptr<HostRegion>& region() const { return parts_.region; }
  /// Whether this host has fewer cores than ranks.
  bool crowded() const { return size() > parts_.cores; }

  /// Memory of rank `peer`'s arena at `offset`, readable and writable.
  std::byte* address(int peer, std::uint64_t offset) const {
    return parts_.arena_bases[static_cast<std::size_t>(peer)] + offset;
  }

  /// Access to memory of rank `peer` outside its Arena; null when all of it is addressable here, as
  /// with threads of one process. Valid after the first await_all().
  const PeerMemory* memory_of(int peer) const {
    return peers_.empty() ? nullptr : &peers_[static_cast<std::size_t>(peer)];
  }
  /// The memory of rank `peer`, which must have made its HostGroup, and whether this rank can read
  /// it outside of the Arena. For ranks that are processes. A system call; any thread.
  struct Reach {
    PeerMemory memory;
    bool can_read;
  };
  Reach reach(int peer) const;
  /// Whether every peer can read and write this rank's memory outside its Arena.
  bool reached_by_all();
  /// Whether the ranks are threads of one process, which can address all memory.
  bool threads() const { return threads_; }

  std::span<std::byte, HostRegion::kBoardBytes> board(int rank) const {
    return parts_.region->board(rank, parity_);
  }
  /// The part of a rank's board on the cache line of its arrival flag: a rank that sees the flag
  /// also has this data in its cache.
  std::span<std::byte, HostRegion::kNoteBytes> note(int rank) const {
    return parts_.region->note(rank, parity_);
  }
  /// Switches to the other board and note. Safe without a barrier: a rank returns to a board only
  /// after all ranks have arrived in the operation in between.
  void next_operation() {
    ++parity_;
    waited_ = false;
  }
  /// Whether this rank had to wait for another in the current operation, for longer than the first
  /// microseconds of polling.
  bool waited() const { return waited_; }

  /// Raises this rank's arrival flag: everything that it wrote before may now be read.
  void arrive();
  /// Blocks until every rank has arrived as often as this one, at most until `by`. kPeerLost when
  /// one of them has left the group; the message names it. kDeadlineExceeded names the missing
  /// ranks. kCancelled when the fence is closed, or leave() is called meanwhile.
  Status await_all(Deadline by);
  /// The same for one other rank.
  Status await(int peer, Deadline by);
  /// Whether that rank has arrived as often as this one.
  bool has_arrived(int peer) const { return reached(region()->cell(peer).arrived.load(), phase_); }
  Status sync(Deadline by) {
    arrive();
    return await_all(by);
  }
  /// Marks this rank as finished: ranks that wait for it fail instead of waiting forever. What this
  /// rank waits for on another thread ends, too.
  void leave();
  /// Whose leaving has closed the fence (kPeerLost), or that the group has failed.
  Status why_closed() const;

 private:
  void reach_peers();
  WaitPolicy policy_for(int peer) const;
  bool has_left(int peer) const {
    return region()->cell(peer).left.load(std::memory_order_acquire) != 0;
  }
  Status missing() const;

  HostParts parts_;
  std::shared_ptr<Health> health_;
  Fence fence_;
  WaitPolicy policy_;
  const bool threads_;                    // the ranks are threads of one process
  std::unique_ptr<std::uint64_t> probe_;  // for peers to find by reading this process
  std::vector<PeerMemory> peers_;         // by rank, this one too
  bool reached_by_all_ = false;
  std::uint32_t phase_ = 0;
  unsigned parity_ = 0;
  bool waited_ = false;
};

}  // namespace stormo::transport
