#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <span>

#include <stormo/optim/options.h>
#include <stormo/optim/update.h>

namespace stormo::optim {

/// Where an update saves what it is about to change, part by part, in memory that other processes
/// share. Who goes on after it was killed restores the last part, which may be half changed.
///
/// There is room for two parts, of which one counts. The next one is saved in the other's place,
/// and then counts by a single store. So one counts at any instruction, and all that lies before it
/// is done.
///
/// A process that is killed has made all stores before its last instruction, in the order of the
/// program. So only the compiler has to keep their order.
class UpdateJournal {
 public:
  /// Most bytes of each array in a part: a strip of vectors. Both parts stay in the first cache.
  static constexpr std::size_t kPart = 128;
  /// What a block of an update changes: weights and slots, all of one size, or empty.
  using Changes = std::array<std::span<std::byte>, 1 + kMaxSlots>;

  /// Bytes are 0 before the first update.
  struct Memory {
    struct Part {
      std::uint64_t block;         // that of a journal
      std::uint64_t begin, bytes;  // of each array
    };
    alignas(64) std::atomic<std::uint32_t> last;  // the one that counts
    std::array<Part, 2> parts;
    alignas(64) std::array<std::array<std::array<std::byte, kPart>, 1 + kMaxSlots>, 2> saved;
  };

  /// Of one block, whose number no other one has had in this memory, and which is not 0. Restores
  /// the part of it that counts.
  UpdateJournal(Memory& memory, std::uint64_t block, const Changes& changes);

  /// The bytes of each array that are done: where the next part begins.
  std::size_t begin() const { return begin_; }
  /// Where the bytes of this array in the next part are saved.
  std::byte* place(std::size_t array) { return memory_.saved[next_][array].data(); }
  /// So many of each have been. All before them is done; they may be changed now.
  void note_saved(std::size_t bytes) {
    memory_.parts[next_] = {.block = block_, .begin = begin_, .bytes = bytes};
    memory_.last.store(next_, std::memory_order_release);
    // a store with release alone lets those behind it come first
    std::atomic_signal_fence(std::memory_order_seq_cst);
    next_ ^= 1;
    begin_ += bytes;
  }

 private:
  Memory& memory_;
  const std::uint64_t block_;
  std::uint32_t next_ = 0;
  std::size_t begin_ = 0;
};

/// As update(), of rules that need no norms. Saves each part before it changes it. The piece begins
/// where the journal does, and ends with the block.
using JournaledUpdate = void (*)(const Options& options, const UpdateStep& step,
                                 const UpdateRange& piece, UpdateJournal& journal);
JournaledUpdate journaled_update_of(const Options& options, DType dtype);

}  // namespace stormo::optim
