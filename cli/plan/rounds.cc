#include <cli/plan/rounds.h>

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <tuple>

namespace stormo::cli {
namespace {

constexpr std::size_t kMaxRows = 40, kMaxColumns = 64, kMaxWidth = 120, kMaxCell = 28;

/// "0-3,7"
std::string ranges(const std::vector<int>& sorted) {
  std::string out;
  for (std::size_t i = 0; i < sorted.size();) {
    std::size_t end = i + 1;
    while (end < sorted.size() && sorted[end] == sorted[end - 1] + 1) ++end;
    if (!out.empty()) out += ',';
    out += end - i == 1
               ? fmt::to_string(sorted[i])
               : fmt::format("{}{}{}", sorted[i], end - i == 2 ? "," : "-", sorted[end - 1]);
    i = end;
  }
  return out;
}

/// "+c1 to 2; =c0-3 to 4-7": what one rank sends, receivers of the same joined, cut to kMaxCell.
std::string cell(const std::vector<const Arrow*>& arrows) {
  std::vector<std::pair<std::string, std::vector<int>>> by_label;
  for (const Arrow* arrow : arrows) {
    const std::string label = label_of(*arrow);
    const auto found = std::ranges::find(by_label, label, &decltype(by_label)::value_type::first);
    if (found == by_label.end()) {
      by_label.push_back({label, {arrow->to}});
    } else {
      found->second.push_back(arrow->to);
    }
  }
  std::string out;
  for (std::size_t i = 0; i < by_label.size(); ++i) {
    const std::string item =
        fmt::format("{}{} to {}", i > 0 ? "; " : "", by_label[i].first, ranges(by_label[i].second));
    if (i > 0 && out.size() + item.size() > kMaxCell) {
      return out + fmt::format("; {} more", by_label.size() - i);
    }
    out += item;
  }
  return out;
}

/// How many leading columns fit into kMaxWidth; at least the first two.
std::size_t columns_that_fit(const Rows& rows) {
  std::size_t width = 0;
  for (std::size_t column = 0; column < rows.front().size(); ++column) {
    std::size_t widest = 0;
    for (const auto& row : rows) widest = std::max(widest, row[column].size());
    width += widest + 2;
    if (column >= 2 && width > kMaxWidth) return column;
  }
  return rows.front().size();
}

}  // namespace

std::vector<Arrow> arrows_of(const plan::Round& round) {
  std::map<std::tuple<Rank, Rank, plan::ReceiveOp>, std::vector<int>> chunks;
  for (const plan::Transfer& t : round) chunks[{t.from, t.to, t.how}].push_back(t.chunk);
  std::vector<Arrow> out;
  for (auto& [key, list] : chunks) {
    std::ranges::sort(list);
    out.push_back({std::get<0>(key), std::get<1>(key), std::get<2>(key), std::move(list)});
  }
  return out;
}

std::string label_of(const Arrow& arrow) {
  return (arrow.how == plan::ReceiveOp::kReduce ? "+c" : "=c") + ranges(arrow.chunks);
}

RoundsTable rounds_table(const plan::Schedule& s) {
  const std::size_t ranks = static_cast<std::size_t>(s.ranks);
  const std::size_t rounds = std::min(s.rounds.size(), kMaxRows);
  const std::size_t columns = std::min(ranks, kMaxColumns);
  RoundsTable out;
  out.rows.push_back({"round"});
  for (std::size_t r = 0; r < columns; ++r) out.rows[0].push_back(fmt::format("rank {}", r));
  for (std::size_t i = 0; i < rounds; ++i) {
    const std::vector<Arrow> arrows = arrows_of(s.rounds[i]);
    std::vector<std::vector<const Arrow*>> sent(ranks);
    for (const Arrow& arrow : arrows) sent[static_cast<std::size_t>(arrow.from)].push_back(&arrow);
    auto& row = out.rows.emplace_back(1, fmt::to_string(i));
    for (std::size_t r = 0; r < columns; ++r) row.push_back(cell(sent[r]));
  }
  const std::size_t shown = columns_that_fit(out.rows) - 1;
  for (auto& row : out.rows) row.resize(shown + 1);
  if (shown < ranks) out.note += fmt::format("{} of {} ranks are shown. ", shown, ranks);
  if (rounds < s.rounds.size()) {
    out.note += fmt::format("{} of {} rounds are shown. ", rounds, s.rounds.size());
  }
  return out;
}

}  // namespace stormo::cli
