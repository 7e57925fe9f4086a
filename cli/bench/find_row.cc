#include <cli/bench/find_row.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/base/units.h>

namespace stormo::cli {

std::string unknown_name(std::string_view flag, std::string_view name,
                         const std::vector<std::string_view>& names) {
  const std::string_view near = nearest_match(name, names);
  return fmt::format("{}: '{}' is unknown; there are {}{}", flag, name, fmt::join(names, ", "),
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

std::vector<std::string> known_names(std::span<const std::string_view> known,
                                     const std::vector<std::string>& given, std::string_view flag,
                                     std::vector<std::string>& wrong) {
  std::vector<std::string> out;
  for (const std::string& name : given) {
    if (std::ranges::count(known, name) == 0)
      wrong.push_back(unknown_name(flag, name, {known.begin(), known.end()}));
    else if (std::ranges::count(out, name) == 0)
      out.push_back(name);
  }
  return out;
}

}  // namespace stormo::cli
