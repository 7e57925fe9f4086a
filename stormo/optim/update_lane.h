#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>

#include <stormo/optim/update_journal.h>

namespace stormo::optim {

/// An update that another process can go on with when the one that makes it is killed, at any
/// instruction (docs/adr/0039-elastic-host-shared.md). It consists of blocks, each of which saves
/// what it changes in a journal. So whoever goes on restores what may be changed in part, and does
/// the rest of the block.
///
/// A lane lies in memory that these processes share, and its bytes are 0 before its first update.
/// Its updates have numbers, from 1. At most one thread of them all works on it at a time:
/// who has claimed it. Nothing is allocated.
class UpdateLane {
 public:
  struct Work {
    std::uint64_t number = 1;  ///< of the update
    std::uint32_t blocks = 0;  ///< less than 2^24
    /// Equal in all processes; all empty: there is nothing to do for this block.
    std::function<UpdateJournal::Changes(std::uint32_t block)> changes;
    /// Changes these bytes, from where the journal begins on, and no others; part by part, each
    /// after it was saved. Depends on nothing else that changes.
    std::function<void(std::uint32_t block, UpdateJournal& journal)> perform;
  };

  struct Memory {
    alignas(64) std::atomic<std::uint64_t> done;  // update and block: how many are done
    std::atomic<std::uint32_t> worker;            // 0: nobody
    UpdateJournal::Memory journal;
  };

  /// Borrowed.
  explicit UpdateLane(Memory* memory) : memory_(memory) {}

  /// Who works on the lane, by numbers from 1; 0: nobody.
  std::uint32_t worker() const { return memory_->worker.load(std::memory_order_acquire); }
  /// Replaces `before`, nobody or a process that has ended, as its worker; false if that has
  /// changed.
  bool claim(std::uint32_t me, std::uint32_t before = 0) {
    return memory_->worker.compare_exchange_strong(before, me, std::memory_order_acq_rel);
  }
  void leave() { memory_->worker.store(0, std::memory_order_release); }

  /// Whether all blocks of this update are done. Then this thread sees them.
  bool is_done(const Work& work) const;
  /// Does what is left of the update before which all blocks of the lane were done. By its worker.
  void run(const Work& work);

 private:
  Memory* memory_;
};

}  // namespace stormo::optim
