#include <stormo/optim/update_lane.h>

#include <algorithm>

namespace stormo::optim {
namespace {

constexpr std::uint64_t kBlockBits = 24;
static_assert(std::atomic<std::uint64_t>::is_always_lock_free);

std::uint64_t position(std::uint64_t number, std::uint32_t blocks) {
  return number << kBlockBits | blocks;
}

bool is_empty(const UpdateJournal::Changes& changes) {
  return std::ranges::all_of(changes, [](auto bytes) { return bytes.empty(); });
}

}  // namespace

bool UpdateLane::is_done(const Work& work) const {
  return work.blocks == 0 ||
         memory_->done.load(std::memory_order_acquire) >= position(work.number, work.blocks);
}

void UpdateLane::run(const Work& work) {
  const std::uint64_t begin = position(work.number, 0);
  // that of the update before counts as none of this one
  const std::uint64_t done = std::max(memory_->done.load(std::memory_order_acquire), begin);
  for (auto block = static_cast<std::uint32_t>(done - begin); block < work.blocks; ++block) {
    const std::uint64_t after = begin + block + 1;
    const UpdateJournal::Changes changes = work.changes(block);
    if (!is_empty(changes)) {
      UpdateJournal journal(memory_->journal, after, changes);
      work.perform(block, journal);
    }
    memory_->done.store(after, std::memory_order_release);
  }
}

}  // namespace stormo::optim
