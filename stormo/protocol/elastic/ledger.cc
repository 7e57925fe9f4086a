#include <stormo/protocol/elastic/ledger.h>

#include <algorithm>

namespace stormo::protocol {

SampleRange batch_of(std::uint64_t step, std::uint64_t global_batch) {
  return {.first = (step - 1) * global_batch, .count = global_batch};
}

SampleRange part_of(const SampleRange& batch, const ElasticRecord& record, std::size_t rank,
                    bool is_healing) {
  std::uint64_t before = 0, mine = 0, all = 0;
  for (std::size_t r = 0; r < record.members.size(); ++r) {
    const ElasticEntry& member = record.members[r];
    const bool is_idle = is_healing && !record.is_donor(member.id.identity);
    const std::uint64_t shares = is_idle ? 0 : member.shares;
    if (r < rank) before += shares;
    if (r == rank) mine = shares;
    all += shares;
  }
  const std::uint64_t begin = batch.count * before / all;
  const std::uint64_t end = batch.count * (before + mine) / all;
  return {.first = batch.first + begin, .count = end - begin};
}

std::uint64_t Healing::last_step(const ElasticRecord& record) const {
  if (!is_needed(record)) return record.base_step;
  return record.base_step + (slices + slices_per_step - 1) / slices_per_step;
}

SliceRange Healing::slices_of(const ElasticRecord& record, std::uint64_t step) const {
  if (!is_needed(record) || step <= record.base_step || step > last_step(record)) return {};
  const auto before = static_cast<std::uint32_t>(step - record.base_step - 1) * slices_per_step;
  return {.first = before, .count = std::min(slices_per_step, slices - before)};
}

}  // namespace stormo::protocol
