#include <stormo/data/classes.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>

#include <stormo/base/text.h>

namespace stormo::data {
namespace {

constexpr std::int64_t kMostClasses = 1'000'000;
constexpr std::size_t kShown = 10;

/// A whole number as people write it: no sign, no zero in front.
std::optional<std::int64_t> as_class(std::string_view label) {
  const auto value = number_in<std::int64_t>(label);
  const bool plain = value && *value >= 0 && (label.size() == 1 || label.front() != '0');
  return plain && *value < kMostClasses ? value : std::nullopt;
}

}  // namespace

Classes Classes::of(std::span<const std::string> labels) {
  Classes classes;
  bool numbers = true;
  for (const std::string& label : labels) {
    const auto value = as_class(label);
    numbers = numbers && value.has_value();
    classes.size_ = std::max(classes.size_, value.value_or(0) + 1);
  }
  if (numbers) return classes;
  return named({labels.begin(), labels.end()});
}

Classes Classes::named(std::vector<std::string> names) {
  std::ranges::sort(names);
  names.erase(std::ranges::unique(names).begin(), names.end());
  Classes classes;
  classes.size_ = std::ssize(names);
  classes.names_ = std::move(names);
  return classes;
}

Classes Classes::numbers(std::int64_t size) {
  Classes classes;
  classes.size_ = size;
  return classes;
}

std::string Classes::name(std::int64_t index) const {
  return index < std::ssize(names_) ? names_[static_cast<std::size_t>(index)]
                                    : std::to_string(index);
}

Result<std::int64_t> Classes::find(std::string_view label) const {
  if (names_.empty()) {
    const auto value = as_class(label);
    if (value && *value < size_) return *value;
    return invalid_argument(
        fmt::format("label \"{}\" is not one of the classes 0 to {} of the "
                    "training part",
                    label, size_ - 1));
  }
  const auto place = std::ranges::lower_bound(names_, label);
  if (place != names_.end() && *place == label) return place - names_.begin();
  const std::size_t shown = std::min(kShown, names_.size());
  return invalid_argument(fmt::format(
      "label \"{}\" does not occur in the training part, which has {}{}", label,
      fmt::join(names_.begin(), names_.begin() + static_cast<std::ptrdiff_t>(shown), ", "),
      shown < names_.size() ? ", ..." : ""));
}

}  // namespace stormo::data
