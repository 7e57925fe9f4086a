#include <cli/number_check.h>

#include <fmt/format.h>

#include <charconv>
#include <cmath>
#include <optional>
#include <string>

namespace stormo::cli {
namespace {

template <class Number>
std::optional<Number> number_in(const std::string& text) {
  Number value{};
  const char* end = text.data() + text.size();
  const auto [last, failure] = std::from_chars(text.data(), end, value);
  return failure == std::errc{} && last == end ? std::optional(value) : std::nullopt;
}

}  // namespace

CLI::Validator at_least(std::int64_t least) {
  const auto check = [least](const std::string& text) {
    const auto value = number_in<std::int64_t>(text);
    if (value && *value >= least) return std::string();
    return fmt::format("must be a whole number of at least {}, not {}", least, text);
  };
  return {check, ""};
}

CLI::Validator above_zero() {
  const auto check = [](const std::string& text) {
    const auto value = number_in<double>(text);
    if (value && *value > 0 && std::isfinite(*value)) return std::string();
    return fmt::format("must be a number greater than 0, not {}", text);
  };
  return {check, ""};
}

}  // namespace stormo::cli
