#include <stormo/optim/update_lane.h>

#include <algorithm>
#include <cstring>

namespace stormo::optim {
namespace {

constexpr std::uint64_t kBlockBits = 24;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::uint64_t position(std::uint64_t number, std::uint32_t blocks) {
  return number << kBlockBits | blocks;
}

bool is_empty(const UpdateLane::Changes& changes) {
  return std::ranges::all_of(changes, [](auto bytes) { return bytes.empty(); });
}

}  // namespace

std::size_t UpdateLane::bytes(std::size_t saved) {
  constexpr std::size_t kLine = alignof(Head);
  return sizeof(Head) + (saved + kLine - 1) / kLine * kLine;
}

bool UpdateLane::is_done(const Work& work) const {
  return work.blocks == 0 ||
         head_->done.load(std::memory_order_acquire) >= position(work.number, work.blocks);
}

// A process that is killed has made all stores before its last instruction, in the order of the
// program. So only the compiler has to keep their order. The fence tells it so: a store with
// release alone lets those behind it come first.
void UpdateLane::run(const Work& work) {
  const std::uint64_t begin = position(work.number, 0);
  // that of the update before counts as none of this one
  const std::uint64_t done = std::max(head_->done.load(std::memory_order_acquire), begin);
  auto block = static_cast<std::uint32_t>(done - begin);
  if (head_->saved.load(std::memory_order_acquire) == done + 1) {
    const std::byte* from = saved_;
    for (const std::span<std::byte> bytes : work.changes(block)) {
      std::copy_n(from, bytes.size(), bytes.data());
      from += bytes.size();
    }
  }
  for (; block < work.blocks; ++block) {
    const Changes changes = work.changes(block);
    if (!is_empty(changes)) {
      std::byte* to = saved_;
      for (const std::span<std::byte> bytes : changes) {
        if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
        to += bytes.size();
      }
      head_->saved.store(begin + block + 1, std::memory_order_release);
      std::atomic_signal_fence(std::memory_order_seq_cst);
      work.perform(block);
    }
    head_->done.store(begin + block + 1, std::memory_order_release);
  }
}

}  // namespace stormo::optim
