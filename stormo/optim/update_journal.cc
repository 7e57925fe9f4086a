#include <stormo/optim/update_journal.h>

#include <algorithm>

namespace stormo::optim {

UpdateJournal::UpdateJournal(Memory& memory, std::uint64_t block, const Changes& changes)
    : memory_(memory), block_(block) {
  const std::uint32_t last = memory.last.load(std::memory_order_acquire);
  next_ = last ^ 1;
  const Memory::Part& part = memory.parts[last];
  if (part.block != block) return;
  begin_ = part.begin;
  for (std::size_t array = 0; array < changes.size(); ++array) {
    if (changes[array].empty()) continue;
    std::copy_n(memory.saved[last][array].data(), part.bytes, &changes[array][begin_]);
  }
}

}  // namespace stormo::optim
