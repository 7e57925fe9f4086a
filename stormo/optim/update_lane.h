#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include <stormo/optim/options.h>

namespace stormo::optim {

/// An update that another process can go on with when the one that makes it is killed, at any
/// instruction (docs/adr/0039-elastic-host-shared.md). It consists of blocks. What a block changes
/// is saved beside it first; so whoever goes on restores the block that may be changed in part, and
/// does it again.
///
/// A lane lies in memory that these processes share, and its bytes are 0 before its first update.
/// Its updates have numbers, from 1. At most one thread of them all works on it at a time:
/// who has claimed it. Nothing is allocated.
class UpdateLane {
 public:
  /// What a block changes: weights and slots. Together at most the bytes that the lane can save.
  using Changes = std::array<std::span<std::byte>, 1 + kMaxSlots>;
  struct Work {
    std::uint64_t number = 1;  ///< of the update
    std::uint32_t blocks = 0;  ///< less than 2^24
    /// Equal in all processes; all empty: there is nothing to do for this block.
    std::function<Changes(std::uint32_t block)> changes;
    /// Changes these bytes, and no others. Depends on nothing else that changes.
    std::function<void(std::uint32_t block)> perform;
  };

  /// What a lane takes that can save so many bytes.
  static std::size_t bytes(std::size_t saved);
  /// `memory` is borrowed, and aligned to 64 bytes.
  explicit UpdateLane(std::byte* memory)
      : head_(reinterpret_cast<Head*>(memory)), saved_(memory + sizeof(Head)) {}

  /// Who works on the lane, by numbers from 1; 0: nobody.
  std::uint32_t worker() const { return head_->worker.load(std::memory_order_acquire); }
  /// Replaces `before`, nobody or a process that has ended, as its worker; false if that has
  /// changed.
  bool claim(std::uint32_t me, std::uint32_t before = 0) {
    return head_->worker.compare_exchange_strong(before, me, std::memory_order_acq_rel);
  }
  void leave() { head_->worker.store(0, std::memory_order_release); }

  /// Whether all blocks of this update are done. Then this thread sees them.
  bool is_done(const Work& work) const;
  /// Does what is left of the update before which all blocks of the lane were done. By its worker.
  void run(const Work& work);

 private:
  struct alignas(64) Head {
    std::atomic<std::uint64_t> done;    // update and block: how many are done
    std::atomic<std::uint64_t> saved;   // likewise: the last of them lies as it was in saved_
    std::atomic<std::uint32_t> worker;  // 0: nobody
  };
  Head* head_;
  std::byte* saved_;
};

}  // namespace stormo::optim
