#include <stormo/base/units.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <vector>

namespace stormo {
namespace {

/// Splits "64KiB" into its number and its unit; false when there is no number.
bool split_number(std::string_view text, double& number, std::string_view& unit) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error != std::errc{} || !std::isfinite(number) || number < 0) return false;
  unit = text.substr(static_cast<std::size_t>(end - text.data()));
  while (!unit.empty() && unit.front() == ' ') unit.remove_prefix(1);
  return true;
}

}  // namespace

std::string format_bytes(std::uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  std::size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  const bool whole = value == static_cast<double>(static_cast<std::uint64_t>(value));
  return whole ? fmt::format("{} {}", static_cast<std::uint64_t>(value), kUnits[unit])
               : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string format_duration(Duration d) {
  const double s = std::chrono::duration<double>(d).count();
  if (s < 1e-3) return fmt::format("{:.1f} us", s * 1e6);
  if (s < 1) return fmt::format("{:.1f} ms", s * 1e3);
  if (s < 60) return fmt::format("{:.1f} s", s);
  const auto whole = static_cast<std::int64_t>(s + 0.5);
  if (whole < 3600) return fmt::format("{} min {} s", whole / 60, whole % 60);
  return fmt::format("{} h {} min", whole / 3600, whole % 3600 / 60);
}

Result<std::uint64_t> parse_bytes(std::string_view text) {
  double number = 0;
  std::string_view unit;
  const auto bad = [&] {
    return invalid_argument(fmt::format("'{}' is not a size; write 4096, 64K, 1MiB or 2G", text));
  };
  if (!split_number(text, number, unit)) return bad();
  static constexpr std::string_view kPrefixes = "KMGT";
  double scale = 1;
  if (!unit.empty() && unit != "B") {
    const std::size_t i = kPrefixes.find(static_cast<char>(unit[0] & ~0x20));
    if (i == std::string_view::npos) return bad();
    for (std::size_t k = 0; k <= i; ++k) scale *= 1024;
    const std::string_view rest = unit.substr(1);
    if (!rest.empty() && rest != "iB" && rest != "B") return bad();
  }
  if (number * scale > 0x1p62) return bad();
  return static_cast<std::uint64_t>(number * scale);
}

Result<Duration> parse_duration(std::string_view text) {
  double number = 0;
  std::string_view unit;
  double seconds = 0;
  if (split_number(text, number, unit)) {
    if (unit == "us")
      seconds = 1e-6;
    else if (unit == "ms")
      seconds = 1e-3;
    else if (unit == "s" || unit.empty())
      seconds = 1;
    else if (unit == "min" || unit == "m")
      seconds = 60;
    else if (unit == "h")
      seconds = 3600;
  }
  if (seconds == 0 || number * seconds > 1e9)
    return invalid_argument(fmt::format("'{}' is not a duration; write 250ms, 5s or 2min", text));
  return std::chrono::round<Duration>(std::chrono::duration<double>(number * seconds));
}

int edit_distance(std::string_view a, std::string_view b) {
  std::vector<int> before(b.size() + 1);
  std::vector<int> above(b.size() + 1);
  std::vector<int> row(b.size() + 1);
  for (std::size_t j = 0; j <= b.size(); ++j) row[j] = static_cast<int>(j);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::swap(before, above);
    std::swap(above, row);
    row[0] = static_cast<int>(i);
    for (std::size_t j = 1; j <= b.size(); ++j) {
      row[j] = std::min({above[j] + 1, row[j - 1] + 1, above[j - 1] + (a[i - 1] != b[j - 1])});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) row[j] = std::min(row[j], before[j - 2] + 1);
    }
  }
  return row[b.size()];
}

}  // namespace stormo
