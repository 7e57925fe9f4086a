#include <cli/number_check.h>

#include <fmt/format.h>

#include <charconv>
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

CLI::Validator from_to(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    const auto value = number_in<double>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return fmt::format("must be a number from {:g} to {:g}, not {}", least, most, text);
  };
  return {check, ""};
}

}  // namespace stormo::cli
