#include <stormo/train/prepare/table_features.h>

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <utility>

namespace stormo::train {
namespace {

/// Numbers that differ by less than this share of the largest are equal but for rounding: a double
/// has 16 digits, and a sum of many loses some of them.
constexpr double kRounding = 1e-12;

std::vector<double> column_of(const data::Table& table, std::size_t column) {
  std::vector<double> numbers;
  for (std::size_t at = column; at < table.features.size(); at += table.columns.size()) {
    numbers.push_back(table.features[at]);
  }
  return numbers;
}

/// Writes the features that one column becomes.
class ColumnWriter {
 public:
  ColumnWriter(const data::Table& table, const Preprocessing& settled, std::size_t column)
      : column_(column) {
    const std::string& name = table.columns[column];
    if (const auto texts = settled.categories.find(name); texts != settled.categories.end()) {
      width_ = texts->second.size();
      for (const std::string& text : table.texts[column]) {
        const auto at = std::ranges::lower_bound(texts->second, text);
        const bool known = at != texts->second.end() && *at == text;
        places_.push_back(known ? static_cast<std::size_t>(at - texts->second.begin()) : width_);
      }
      return;
    }
    indicates_ = std::ranges::count(settled.indicators, name) > 0;
    width_ = indicates_ ? 2 : 1;
    if (!settled.scales.empty()) scale_ = settled.scales[column];
    if (!settled.fills.empty()) fill_ = settled.fills[column];
  }

  std::size_t width() const { return width_; }

  /// `out` holds zeros.
  void write(double value, double* out) const {
    if (!places_.empty()) {
      const std::size_t place = places_[static_cast<std::size_t>(value)];
      if (place < width_) out[place] = 1;
      return;
    }
    const bool missing = std::isnan(value);
    out[0] = scale_.apply(missing ? fill_ : value);
    if (indicates_) out[1] = missing ? 1 : 0;
  }

  std::size_t column() const { return column_; }

 private:
  std::size_t column_;
  std::size_t width_ = 1;
  std::vector<std::size_t> places_;  // of the table's texts among the settled ones
  bool indicates_ = false;
  Preprocessing::Scale scale_;
  double fill_ = 0;
};

/// The mean of what is there.
Result<double> fill_of(const std::string& column, std::span<const double> numbers) {
  if (std::ranges::all_of(numbers, [](double n) { return std::isnan(n); })) {
    return invalid_argument(
        fmt::format("column \"{}\" has no number at all; leave it out by data.exclude", column));
  }
  return scale_of(numbers).mean;
}

}  // namespace

bool fits(double number, torch::ScalarType dtype) {
  return std::isfinite(dtype == torch::kFloat64 ? number : static_cast<float>(number));
}

std::string beyond(torch::ScalarType dtype) {
  return dtype == torch::kFloat64
             ? "is beyond what float64 holds (1.8e308)"
             : "is beyond what float32 holds (3.4e38); write a smaller number, set "
               "data.standardise = true, or precision = \"float64\"";
}

data::TableOptions table_options(const Recipe& recipe) {
  data::TableOptions options{
      .form = {.separator = recipe.data.kind == "csv" ? ',' : '\t', .header = recipe.data.header},
      .label = recipe.data.label,
      .columns = recipe.data.columns,
      .exclude = recipe.data.exclude,
      .categories = recipe.data.categories,
      .may_be_missing = recipe.data.missing != "error"};
  options.id = recipe.data.id;
  return options;
}

data::TableOptions table_options(const Recipe& recipe, const Preprocessing& settled) {
  data::TableOptions options = table_options(recipe);
  options.columns = settled.columns;
  options.exclude.clear();
  options.may_be_missing = !settled.fills.empty();
  options.categories.clear();
  for (const auto& [column, texts] : settled.categories) options.categories.push_back(column);
  return options;
}

Preprocessing::Scale scale_of(std::span<const double> numbers) {
  double least = std::numeric_limits<double>::infinity(), most = -least, count = 0;
  for (const double number : numbers) {
    if (std::isnan(number)) continue;
    least = std::min(least, number);
    most = std::max(most, number);
    ++count;
  }
  const double largest = std::max(std::abs(least), std::abs(most));
  if (count == 0 || largest == 0) return {};
  if (most - least <= kRounding * largest) return {.mean = least, .stddev = 1};
  // in a unit in which no square is too large or too small for a double
  const int exponent = std::ilogb(largest);
  double sum = 0, squares = 0;
  const auto each = [&](const auto& use) {
    for (const double number : numbers) {
      if (!std::isnan(number)) use(std::scalbn(number, -exponent));
    }
  };
  each([&](double number) { sum += number; });
  const double mean = sum / count;
  each([&](double number) { squares += (number - mean) * (number - mean); });
  return {.mean = std::scalbn(mean, exponent),
          .stddev = std::scalbn(std::sqrt(squares / count), exponent)};
}

Status settle_columns(const Recipe& recipe, const data::Table& table, Preprocessing& settled) {
  settled.columns = table.columns;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const std::string& name = table.columns[c];
    const bool is_text = !table.texts[c].empty();
    const std::vector<double> numbers = is_text ? std::vector<double>() : column_of(table, c);
    if (is_text) {
      std::vector<std::string> texts;  // those that occur in these rows
      for (const double place : column_of(table, c)) {
        texts.push_back(table.texts[c][static_cast<std::size_t>(place)]);
      }
      std::ranges::sort(texts);
      texts.erase(std::ranges::unique(texts).begin(), texts.end());
      settled.categories.emplace(name, std::move(texts));
    }
    if (recipe.data.standardise) settled.scales.push_back(scale_of(numbers));
    if (recipe.data.missing == "error") continue;
    double fill = 0;
    if (!is_text) {
      STORMO_ASSIGN_OR_RETURN(fill, fill_of(name, numbers));
    }
    settled.fills.push_back(fill);
    const bool lacks = std::ranges::any_of(numbers, [](double n) { return std::isnan(n); });
    if (lacks && recipe.data.missing == "indicator") settled.indicators.push_back(name);
  }
  settled.input = {settled.features()};
  return {};
}

Result<torch::Tensor> feature_tensor(const data::Table& table, const Preprocessing& settled,
                                     torch::ScalarType dtype, const std::string& path) {
  std::vector<ColumnWriter> writers;
  for (std::size_t c = 0; c < table.columns.size(); ++c) writers.emplace_back(table, settled, c);
  const auto rows = std::ssize(table.lines);
  torch::Tensor all = torch::zeros({rows, settled.features()}, torch::kFloat64);
  auto* out = all.mutable_data_ptr<double>();
  for (std::size_t row = 0; row < table.lines.size(); ++row) {
    for (const ColumnWriter& writer : writers) {
      const double value = table.features[row * table.columns.size() + writer.column()];
      writer.write(value, out);
      if (!fits(*out, dtype)) {
        return invalid_argument(fmt::format(
            "{}:{}: {}: {}{} {}", path, table.lines[row], table.columns[writer.column()], value,
            settled.scales.empty() ? "" : ", standardised,", beyond(dtype)));
      }
      out += writer.width();
    }
  }
  return all.to(dtype);
}

std::vector<std::string> unknown_texts(const data::Table& table, const Preprocessing& settled,
                                       const std::string& path) {
  std::vector<std::string> lines;
  for (std::size_t c = 0; c < table.columns.size(); ++c) {
    const auto known = settled.categories.find(table.columns[c]);
    if (known == settled.categories.end()) continue;
    std::vector<std::size_t> unknown;  // rows
    for (std::size_t row = 0; row < table.lines.size(); ++row) {
      const auto place = static_cast<std::size_t>(table.features[row * table.columns.size() + c]);
      if (!std::ranges::binary_search(known->second, table.texts[c][place])) {
        unknown.push_back(row);
      }
    }
    if (unknown.empty()) continue;
    const auto first =
        static_cast<std::size_t>(table.features[unknown.front() * table.columns.size() + c]);
    lines.push_back(fmt::format(
        "{}: {} values of column \"{}\" do not occur in the training part (the first: line {}, "
        "\"{}\"); they are 0 in all of its features",
        path, unknown.size(), table.columns[c], table.lines[unknown.front()],
        table.texts[c][first]));
  }
  return lines;
}

}  // namespace stormo::train
