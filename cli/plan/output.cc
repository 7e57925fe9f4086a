#include <cli/plan/output.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include <stormo/base/units.h>

namespace stormo::cli {

void print_table(const Rows& rows, bool markdown) {
  std::vector<std::size_t> widths(rows.front().size());
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  for (std::size_t r = 0; r < rows.size(); ++r) {
    std::string line = markdown ? "|" : "";
    for (std::size_t i = 0; i < rows[r].size(); ++i) {
      line += markdown ? fmt::format(" {} |", rows[r][i])
                       : fmt::format("{:<{}}  ", rows[r][i], widths[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    fmt::print("{}\n", line);
    if (markdown && r == 0) {
      std::string rule = "|";
      for (std::size_t i = 0; i < widths.size(); ++i) rule += "---|";
      fmt::print("{}\n", rule);
    }
  }
}

void print_line(const std::string& line) { fmt::print("{}\n", line); }

std::string bytes_text(std::int64_t bytes) {
  return format_bytes(static_cast<std::uint64_t>(bytes));
}

std::string time_text(double seconds) {
  return format_duration(Duration(std::llround(seconds * 1e9)));
}

}  // namespace stormo::cli
