#include <cli/number_check.h>

#include <fmt/format.h>

#include <string>

#include <cli/flag_values.h>
#include <stormo/base/text.h>

namespace stormo::cli {

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

void note_number(CLI::Option* option, int least, std::vector<std::string>& wrong, int most) {
  option->transform([=, &wrong](const std::string& text) {
    const auto value = number_in<int>(text);
    if (value && *value >= least && *value <= most) return text;
    const bool bounded = most < std::numeric_limits<int>::max();
    wrong.push_back(fmt::format(
        "{}: must be a whole number {}, not {}", option->get_name(),
        bounded ? fmt::format("from {} to {}", least, most) : fmt::format("of at least {}", least),
        text));
    return std::to_string(least);
  });
}

}  // namespace stormo::cli
