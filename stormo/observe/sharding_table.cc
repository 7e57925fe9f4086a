#include <stormo/observe/sharding_table.h>

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace stormo::observe {
namespace {

constexpr std::size_t kShownShardClasses = 10;
constexpr std::size_t kShownRanks = 16;

std::size_t classes_of(const ShardingRecord& r) {
  return r.counts.empty() ? 0 : r.counts.front().size();
}

/// What there is beyond the table.
std::string rest_of(const ShardingRecord& r) {
  std::string rest;
  if (classes_of(r) > kShownShardClasses) {
    rest += fmt::format("  and {} more classes\n", classes_of(r) - kShownShardClasses);
  }
  if (r.counts.size() > kShownRanks) {
    const auto largest = std::ranges::max_element(r.chi_square);
    rest += fmt::format("  and {} more ranks; the largest chi-square is {:.2f}, of rank {}\n",
                        r.counts.size() - kShownRanks, *largest, largest - r.chi_square.begin());
  }
  return rest;
}

}  // namespace

std::string sharding_table(const ShardingRecord& r) {
  const std::size_t classes = std::min(kShownShardClasses, classes_of(r));
  std::string text =
      fmt::format("{}: samples of each rank in an epoch, by class\n  rank  samples", r.sharding);
  for (std::size_t c = 0; c < classes; ++c) text += fmt::format("{:>8}", c);
  text += fmt::format("  chi-square (degrees of freedom: {})\n", r.degrees_of_freedom);
  for (std::size_t rank = 0; rank < std::min(kShownRanks, r.counts.size()); ++rank) {
    const std::vector<std::int64_t>& counts = r.counts[rank];
    text += fmt::format("{:>6}{:>9}", rank, r.samples[rank]);
    for (std::size_t c = 0; c < classes; ++c) text += fmt::format("{:>8}", counts[c]);
    text += fmt::format("{:>12.2f}\n", r.chi_square[rank]);
  }
  return text + rest_of(r);
}

std::string sharding_json(const ShardingRecord& r) {
  std::vector<std::vector<std::int64_t>> shown = r.counts;
  for (auto& counts : shown) counts.resize(std::min(kShownShardClasses, counts.size()));
  const nlohmann::ordered_json object = {
      {"sharding", r.sharding},     {"samples", r.samples},
      {"classes", classes_of(r)},   {"counts", shown},
      {"chi_square", r.chi_square}, {"degrees_of_freedom", r.degrees_of_freedom}};
  return object.dump();
}

}  // namespace stormo::observe
