#include <cli/bench/find_row.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <stormo/base/units.h>

namespace stormo::cli {

std::string unknown_name(std::string_view flag, std::string_view name,
                         const std::vector<std::string_view>& names) {
  const std::string_view near = nearest_match(name, names);
  return fmt::format("{}: '{}' is unknown; there are {}{}", flag, name, fmt::join(names, ", "),
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

}  // namespace stormo::cli
