#include <cli/number_check.h>

#include <fmt/format.h>

#include <string>

#include <cli/flag_values.h>

namespace stormo::cli {

CLI::Validator at_least(std::int64_t least) {
  const auto check = [least](const std::string& text) {
    const auto value = number_of<std::int64_t>(text);
    if (value && *value >= least) return std::string();
    return fmt::format("must be a whole number of at least {}, not {}", least, text);
  };
  return {check, ""};
}

CLI::Validator from_to(double least, double most) {
  const auto check = [least, most](const std::string& text) {
    const auto value = number_of<double>(text);
    if (value && *value >= least && *value <= most) return std::string();
    return fmt::format("must be a number from {:g} to {:g}, not {}", least, most, text);
  };
  return {check, ""};
}

}  // namespace stormo::cli
