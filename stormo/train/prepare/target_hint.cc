#include <stormo/train/prepare/target_hint.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <vector>

namespace stormo::train {
namespace {

/// Of classes that are numbers, there are rarely more.
constexpr std::size_t kFewClasses = 20;
constexpr std::size_t kManyValues = 50;
constexpr std::size_t kSamplesPerClass = 10;

}  // namespace

std::string target_hint(std::span<const double> targets, const std::string& loss) {
  const std::set<double> values(targets.begin(), targets.end());
  if (values.size() < 2) return "";
  const bool whole = std::ranges::all_of(values, [](double v) { return std::trunc(v) == v; });
  if (loss == "mse") {
    const auto most = static_cast<double>(values.size() - 1);
    const bool counted = whole && *values.begin() == 0 && *values.rbegin() == most;
    const bool few =
        values.size() <= kFewClasses && targets.size() >= kSamplesPerClass * values.size();
    if (!counted || !few) return "";
    return fmt::format(
        "the targets are the whole numbers 0 to {}, as of classes; if they are classes, write "
        "train.loss = \"cross_entropy\" and give the model {} outputs",
        most, values.size());
  }
  const bool quantity = whole ? values.size() > kManyValues && 3 * values.size() > targets.size()
                              : values.size() > kFewClasses / 2;
  if (!quantity) return "";
  return fmt::format(
      "the labels are {} different numbers in {} samples, as of a quantity; for regression write "
      "train.loss = \"mse\" and give the model one output",
      values.size(), targets.size());
}

std::string target_hint(const data::Table& table, const std::string& loss) {
  std::vector<double> numbers(table.labels.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (!data::parse_number(table.labels[i], numbers[i])) return "";
  }
  return target_hint(numbers, loss);
}

}  // namespace stormo::train
