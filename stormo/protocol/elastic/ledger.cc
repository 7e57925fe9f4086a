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
  const std::uint32_t count = in_step(record);
  return record.base_step + (slices + count - 1) / count;
}

SliceRange Healing::slices_of(const ElasticRecord& record, std::uint64_t step) const {
  if (!is_needed(record) || step <= record.base_step || step > last_step(record)) return {};
  const std::uint32_t count = in_step(record);
  const auto before = static_cast<std::uint32_t>(step - record.base_step - 1) * count;
  return {.first = before, .count = std::min(count, slices - before)};
}

bool Healing::is_near(const ElasticRecord& record) {
  return std::ranges::all_of(record.members, [&](const ElasticEntry& member) {
    const std::string_view host = host_of(member.id.identity);
    return std::ranges::any_of(record.donors, [&](const std::string& d) {
      return host_of(d) == host && record.part_of(d) == member.part;
    });
  });
}

const std::string& Healing::donor_of(const ElasticRecord& record, std::uint32_t slice,
                                     std::string_view receiver) {
  const std::uint32_t part = record.part_of(receiver);
  const auto gives = [&](const std::string& donor) { return record.part_of(donor) == part; };
  const auto is_near = [&](const std::string& donor) {
    return gives(donor) && host_of(donor) == host_of(receiver);
  };
  const auto near = static_cast<std::size_t>(std::ranges::count_if(record.donors, is_near));
  const auto all = static_cast<std::size_t>(std::ranges::count_if(record.donors, gives));
  std::size_t left = slice % (near > 0 ? near : all);
  return *std::ranges::find_if(record.donors, [&](const std::string& donor) {
    return (near > 0 ? is_near(donor) : gives(donor)) && left-- == 0;
  });
}

}  // namespace stormo::protocol
