#include <stormo/comm/split.h>

#include <algorithm>
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace stormo::comm {

Result<std::unique_ptr<Communicator>> split(Communicator& ranks, std::int64_t color,
                                            std::int64_t key, Deadline by) {
  const auto size = static_cast<std::size_t>(ranks.size());
  std::array<std::int64_t, 2> mine{color, key};
  std::vector<std::int64_t> all(2 * size);
  STORMO_RETURN_IF_ERROR(ranks.all_gather(mine, all, by));

  std::map<std::int64_t, std::vector<std::pair<std::int64_t, Rank>>> by_color;
  for (std::size_t r = 0; r < size; ++r) {
    if (all[2 * r] >= 0) by_color[all[2 * r]].emplace_back(all[2 * r + 1], static_cast<Rank>(r));
  }
  for (auto& [each, members] : by_color) {
    std::ranges::sort(members);
    const auto lower = std::ranges::adjacent_find(
        members, [](const auto& a, const auto& b) { return a.second > b.second; });
    if (lower == members.end()) continue;
    return invalid_argument("split: the keys of color " + std::to_string(each) + " put rank " +
                            std::to_string(lower->second) + " before rank " +
                            std::to_string(std::next(lower)->second) +
                            ", but a group keeps the order of ranks; give the rank as key");
  }
  std::unique_ptr<Communicator> own;
  for (const auto& [each, members] : by_color) {
    std::vector<Rank> group;
    for (const auto& [unused, rank] : members) group.push_back(rank);
    STORMO_ASSIGN_OR_RETURN(auto made, ranks.subgroup(group, by));
    if (made != nullptr) own = std::move(made);
  }
  return own;
}

}  // namespace stormo::comm
