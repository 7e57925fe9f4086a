#include <cli/flag_values.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/base/text.h>
#include <stormo/base/units.h>

namespace stormo::cli {

Status as_status(const Wrong& wrong) {
  return wrong.empty() ? Status() : invalid_argument(fmt::format("{}", fmt::join(wrong, "\n")));
}

void note(const Status& status, Wrong& wrong) {
  if (!status.ok()) wrong.push_back(status.message());
}

std::optional<Duration> read_duration(std::string_view flag, std::string_view text, Wrong& wrong) {
  return value_or_wrong(flag, parse_duration(text), wrong);
}

std::optional<std::uint64_t> read_bytes(std::string_view flag, std::string_view text,
                                        Wrong& wrong) {
  return value_or_wrong(flag, parse_bytes(text), wrong);
}

std::optional<double> factor_of(std::string_view text) {
  if (!text.ends_with('x')) return std::nullopt;
  return number_in<double>(text.substr(0, text.size() - 1));
}

std::pair<std::string_view, std::string_view> halves(std::string_view text) {
  const std::size_t colon = text.find(':');
  if (colon == std::string_view::npos) return {text, {}};
  return {text.substr(0, colon), text.substr(colon + 1)};
}

std::string unknown_name(std::string_view flag, std::string_view name,
                         const std::vector<std::string_view>& names) {
  const std::string_view near = nearest_match(name, names);
  return fmt::format("{}: '{}' is unknown; there are {}{}", flag, name, fmt::join(names, ", "),
                     near.empty() ? "" : fmt::format(" (did you mean {}?)", near));
}

std::vector<std::string> known_names(std::span<const std::string_view> known,
                                     const std::vector<std::string>& given, std::string_view flag,
                                     Wrong& wrong) {
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
