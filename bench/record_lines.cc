#include <bench/record_lines.h>

#include <algorithm>

namespace stormo::bench {

std::vector<std::string_view> record_lines(std::string_view text) {
  std::vector<std::string_view> lines;
  while (!text.empty()) {
    std::string_view line = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(line.size() + 1, text.size()));
    if (line.empty()) continue;
    if (const std::size_t end = line.find("] {"); line.front() == '[' && end != line.npos)
      line.remove_prefix(end + 2);
    lines.push_back(line);
  }
  return lines;
}

}  // namespace stormo::bench
