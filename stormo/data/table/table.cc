#include <stormo/data/table/table.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <numeric>
#include <optional>
#include <unordered_map>
#include <utility>

#include <stormo/base/text.h>

namespace stormo::data {
namespace {

constexpr std::size_t kMostCategories = 10'000;

std::string_view without_spaces(std::string_view text) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  return text;
}

bool is_missing(std::string_view text) {
  constexpr std::array<std::string_view, 7> kMissing = {"",    "?",    "na",  "n/a",
                                                        "nan", "null", "none"};
  return std::ranges::find(kMissing, lower_case(without_spaces(text))) != kMissing.end();
}

Result<std::size_t> find_label(const DelimitedReader& reader, const std::string& label) {
  if (reader.columns() < 2) {
    return reader.error(
        "one column only; a table has at least a label and one more, separated by commas in CSV "
        "and by tabs in TSV");
  }
  if (label.empty()) return reader.columns() - 1;
  if (const auto found = reader.find(label)) return *found;
  return reader.error(fmt::format("data.label \"{}\" is no column: {}", label, reader.known()));
}

/// The columns of the features, as the options name them.
Result<std::vector<std::size_t>> find_columns(const DelimitedReader& reader,
                                              const TableOptions& options) {
  std::vector<std::size_t> found;
  std::string missing;
  const bool in_order =
      !options.labelled && !options.form.header && reader.columns() == options.columns.size();
  for (const std::string& column : options.columns) {
    const auto at = in_order ? found.size() : reader.find(column);
    if (at && std::ranges::find(found, *at) != found.end()) {
      return reader.error(fmt::format("data.columns names column \"{}\" twice", column));
    }
    if (at) found.push_back(*at);
    if (!at && !options.one_of_several)
      missing += fmt::format("{}\"{}\"", missing.empty() ? "" : ", ", column);
  }
  if (missing.empty()) return found;
  return reader.error(fmt::format("no column {}: {}", missing, reader.known()));
}

/// Columns that are found by name in other files must have names of their own.
Status check_names(const DelimitedReader& reader, const std::vector<std::size_t>& columns) {
  for (const std::size_t c : columns) {
    if (reader.find(reader.key(c)) == c) continue;
    return reader.error(
        fmt::format("two columns are named \"{}\"; rename one, or choose others by data.columns",
                    reader.name(c)));
  }
  return {};
}

/// The columns that a list of the options names.
Result<std::vector<std::size_t>> find_named(const DelimitedReader& reader,
                                            const std::vector<std::string>& names,
                                            std::string_view key, bool may_lack) {
  std::vector<std::size_t> found;
  for (const std::string& name : names) {
    const auto at = reader.find(name);
    if (at) found.push_back(*at);
    if (at || may_lack) continue;
    return reader.error(
        fmt::format("{} names \"{}\", which is no column: {}", key, name, reader.known()));
  }
  return found;
}

/// Everything but the rows: which columns are wanted.
Result<std::vector<std::size_t>> choose_columns(const DelimitedReader& reader,
                                                const TableOptions& options,
                                                std::optional<std::size_t> label,
                                                std::optional<std::size_t> id) {
  if (!options.columns.empty()) {
    STORMO_ASSIGN_OR_RETURN(std::vector<std::size_t> columns, find_columns(reader, options));
    if (label && std::ranges::count(columns, *label) > 0) {
      return reader.error(
          fmt::format("data.columns names \"{}\", which is the label: choose another by data.label",
                      reader.name(*label)));
    }
    if (!id || std::ranges::count(columns, *id) == 0) return columns;
    return reader.error(fmt::format(
        "data.columns names \"{}\", which is data.id and no feature: leave it out of one of them",
        reader.name(*id)));
  }
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<std::size_t> excluded,
      find_named(reader, options.exclude, "data.exclude", options.one_of_several));
  if (label && std::ranges::count(excluded, *label) > 0) {
    return reader.error(
        fmt::format("data.exclude names \"{}\", which is the label: choose another by data.label",
                    reader.name(*label)));
  }
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < reader.columns(); ++c) {
    const bool is_feature = c != label && c != id && std::ranges::count(excluded, c) == 0;
    if (is_feature) columns.push_back(c);
  }
  STORMO_RETURN_IF_ERROR(check_names(reader, columns));
  return columns;
}

/// Which of `columns` hold texts.
Result<std::vector<bool>> find_texts(const DelimitedReader& reader, const TableOptions& options,
                                     const std::vector<std::size_t>& columns) {
  if (!options.labelled && !options.columns.empty() &&
      !options.one_of_several) {  // the columns are those of the options
    std::vector<bool> texts;
    for (const std::string& name : options.columns) {
      texts.push_back(std::ranges::count(options.categories, name) > 0);
    }
    return texts;
  }
  STORMO_ASSIGN_OR_RETURN(
      const std::vector<std::size_t> named,
      find_named(reader, options.categories, "data.categories", options.one_of_several));
  std::vector<bool> texts;
  for (const std::size_t c : columns) texts.push_back(std::ranges::count(named, c) > 0);
  if (std::ranges::count(texts, true) == std::ssize(named) || options.share) return texts;
  return reader.error("data.categories names a column that is no feature; leave it out");
}

/// The columns that are read.
Result<std::vector<std::size_t>> share_columns(const DelimitedReader& reader,
                                               const TableOptions& options,
                                               std::optional<std::size_t> label,
                                               std::optional<std::size_t> id) {
  const auto foreign = options.label.empty() ? std::nullopt : reader.find(options.label);
  if (options.one_of_several && !label && foreign && reader.key(*foreign) == options.label) {
    return reader.error(fmt::format(
        "column \"{}\" is the label, which another part has too; remove it from one of them, or "
        "name the part that has it by strategy.labels",
        options.label));
  }
  STORMO_ASSIGN_OR_RETURN(std::vector<std::size_t> columns,
                          choose_columns(reader, options, label, id));
  if (columns.empty()) {
    return reader.error(fmt::format("no columns of features are left: {}", reader.known()));
  }
  if (!options.share) return columns;
  const auto share = options.share(columns.size());
  if (!share.ok()) return reader.error(share.status().message());
  const auto [first, count] = *share;
  const auto begin = columns.begin() + static_cast<std::ptrdiff_t>(first);
  return std::vector<std::size_t>(begin, begin + static_cast<std::ptrdiff_t>(count));
}

Result<std::optional<std::size_t>> find_id(const DelimitedReader& reader,
                                           const TableOptions& options,
                                           std::optional<std::size_t> label) {
  if (options.id.empty()) return std::optional<std::size_t>();
  const std::optional<std::size_t> found = reader.find(options.id);
  if (found && found != label) return found;
  return reader.error(fmt::format("data.id \"{}\" is {}: {}", options.id,
                                  found ? "the label" : "no column", reader.known()));
}

/// The rows in ascending order of their ids.
Result<Table> sorted_by_id(const Table& table) {
  std::vector<std::int64_t> order(table.ids.size());
  std::iota(order.begin(), order.end(), std::int64_t{0});
  std::ranges::sort(order, {}, [&](std::int64_t row) -> const std::string& {
    return table.ids[static_cast<std::size_t>(row)];
  });
  Table out = select_rows(table, order);
  for (std::size_t row = 1; row < out.ids.size(); ++row) {
    if (out.ids[row - 1] != out.ids[row]) continue;
    return invalid_argument(fmt::format(
        "lines {} and {} have the same value of data.id, \"{}\"; each row needs its own",
        out.lines[row - 1], out.lines[row], out.ids[row]));
  }
  return out;
}

/// A row without a label would be a class of its own.
Status check_label(const DelimitedReader& reader, std::size_t label,
                   const std::vector<std::string>& fields) {
  if (!without_spaces(fields[label]).empty()) return {};
  return reader.error(
      fmt::format("{}: the label is missing; fill it in, or remove the line", reader.name(label)));
}

/// The fields of a row that are features.
class FeatureReader {
 public:
  FeatureReader(const DelimitedReader& reader, const TableOptions& options,
                const std::vector<std::size_t>& columns, std::vector<bool> texts, Table& table)
      : reader_(reader),
        may_be_missing_(options.may_be_missing),
        columns_(columns),
        is_text_(std::move(texts)),
        places_(columns.size()),
        table_(table) {
    table_.texts.resize(columns.size());
  }

  Status take(std::vector<std::string>& fields) {
    for (std::size_t i = 0; i < columns_.size(); ++i) {
      std::string& field = fields[columns_[i]];
      double value = 0;
      if (is_text_[i]) {
        STORMO_ASSIGN_OR_RETURN(value, place_of(i, std::move(field)));
      } else if (may_be_missing_ && is_missing(field)) {
        value = std::numeric_limits<double>::quiet_NaN();
      } else if (!parse_number(field, value)) {
        return wrong_number(columns_[i], field);
      }
      table_.features.push_back(value);
    }
    return {};
  }

 private:
  Result<double> place_of(std::size_t column, std::string text) {
    std::vector<std::string>& texts = table_.texts[column];
    const auto [at, is_new] = places_[column].emplace(std::move(text), texts.size());
    if (is_new) texts.push_back(at->first);
    if (texts.size() <= kMostCategories) return static_cast<double>(at->second);
    return reader_.error(fmt::format(
        "{}: more than {} different texts, so it is no category; leave it out by data.exclude",
        reader_.name(columns_[column]), kMostCategories));
  }

  Status wrong_number(std::size_t column, const std::string& field) const {
    const char* remedy =
        is_missing(field) ? "fill it in, remove the line, or set data.missing = \"mean\""
                          : "write one, remove the line, list the column in data.categories if it "
                            "is of texts, or leave it out by data.exclude";
    return reader_.error(
        fmt::format("{}: \"{}\" is no finite number; {}", reader_.name(column), field, remedy));
  }

  const DelimitedReader& reader_;
  bool may_be_missing_;
  const std::vector<std::size_t>& columns_;
  std::vector<bool> is_text_;
  std::vector<std::unordered_map<std::string, std::size_t>> places_;  // of the texts, by column
  Table& table_;
};

}  // namespace

bool parse_number(std::string_view text, double& value) {
  text = without_spaces(text);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (end != text.data() + text.size()) return false;
  if (failed == std::errc::result_out_of_range) {  // too large, or too small
    value = std::strtod(std::string(text).c_str(), nullptr);
    return std::abs(value) < 1;
  }
  return failed == std::errc() && std::isfinite(value);
}

Table select_rows(const Table& table, std::span<const std::int64_t> rows) {
  Table out;
  out.columns = table.columns;
  out.texts = table.texts;
  const auto width = static_cast<std::ptrdiff_t>(table.columns.size());
  out.features.reserve(rows.size() * table.columns.size());
  for (const std::int64_t row : rows) {
    const auto at = static_cast<std::size_t>(row);
    const auto begin = table.features.begin() + row * width;
    out.features.insert(out.features.end(), begin, begin + width);
    if (!table.labels.empty()) out.labels.push_back(table.labels[at]);
    out.lines.push_back(table.lines[at]);
    if (!table.ids.empty()) out.ids.push_back(table.ids[at]);
  }
  return out;
}

LabelledTexts select_rows(const LabelledTexts& texts, std::span<const std::int64_t> rows) {
  LabelledTexts out;
  for (const std::int64_t row : rows) {
    out.texts.push_back(texts.texts[static_cast<std::size_t>(row)]);
    out.labels.push_back(texts.labels[static_cast<std::size_t>(row)]);
  }
  return out;
}

Result<Table> read_table(const std::string& path, const TableOptions& options) {
  STORMO_ASSIGN_OR_RETURN(DelimitedReader reader, DelimitedReader::open(path, options.form));
  std::optional<std::size_t> label;
  if (options.labelled) {
    STORMO_ASSIGN_OR_RETURN(label, find_label(reader, options.label));
  }
  STORMO_ASSIGN_OR_RETURN(const std::optional<std::size_t> id, find_id(reader, options, label));
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::size_t> columns,
                          share_columns(reader, options, label, id));
  Table table;
  for (const std::size_t c : columns) table.columns.push_back(reader.key(c));
  STORMO_ASSIGN_OR_RETURN(std::vector<bool> texts, find_texts(reader, options, columns));
  FeatureReader features(reader, options, columns, std::move(texts), table);
  std::vector<std::string> fields;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool more, reader.next(fields));
    if (!more) break;
    STORMO_RETURN_IF_ERROR(features.take(fields));
    if (label) STORMO_RETURN_IF_ERROR(check_label(reader, *label, fields));
    if (label && options.keeps_labels) table.labels.push_back(std::move(fields[*label]));
    if (id) table.ids.push_back(std::move(fields[*id]));
    table.lines.push_back(reader.line());
  }
  if (table.lines.empty()) {
    return reader.error("the table has no rows; set data.header = false if its line is one");
  }
  if (!id) return table;
  Result<Table> sorted = sorted_by_id(table);
  return sorted.ok() ? std::move(sorted) : sorted.status().within(path);
}

Result<Table> join_tables(std::vector<Table> tables) {
  Table out;
  const Table& first = tables.front();
  for (Table& t : tables) {
    if (t.lines.size() != first.lines.size()) {
      return invalid_argument(
          fmt::format("a part has {} rows, the first one {}; all parts must have the same samples",
                      t.lines.size(), first.lines.size()));
    }
    if (t.ids != first.ids) {
      return invalid_argument(
          "the parts have rows with other values of data.id; all must have the same samples");
    }
    for (const std::string& name : t.columns) {
      if (std::ranges::count(out.columns, name) == 0) continue;
      return invalid_argument(
          fmt::format("two parts have a column \"{}\"; rename or remove one of them", name));
    }
    out.columns.insert(out.columns.end(), t.columns.begin(), t.columns.end());
    out.texts.insert(out.texts.end(), t.texts.begin(), t.texts.end());
    if (!t.labels.empty()) out.labels = std::move(t.labels);
  }
  out.features.reserve(first.lines.size() * out.columns.size());
  for (std::size_t row = 0; row < first.lines.size(); ++row) {
    for (const Table& t : tables) {
      const auto begin = t.features.begin() + static_cast<std::ptrdiff_t>(row * t.columns.size());
      out.features.insert(out.features.end(), begin,
                          begin + static_cast<std::ptrdiff_t>(t.columns.size()));
    }
  }
  out.lines = first.lines;
  out.ids = first.ids;
  return out;
}

Result<std::vector<double>> label_numbers(const Table& table) {
  std::vector<double> numbers(table.labels.size());
  for (std::size_t i = 0; i < numbers.size(); ++i) {
    if (parse_number(table.labels[i], numbers[i])) continue;
    return invalid_argument(fmt::format(
        "line {}: label \"{}\" is no finite number; write one, choose another column by "
        "data.label, or set train.loss = \"cross_entropy\" for classes",
        table.lines[i], table.labels[i]));
  }
  return numbers;
}

Result<LabelledTexts> read_labelled_texts(const std::string& path, const DelimitedOptions& form,
                                          const std::string& label) {
  STORMO_ASSIGN_OR_RETURN(DelimitedReader reader, DelimitedReader::open(path, form));
  if (reader.columns() != 2) {
    return reader.error(fmt::format("{} columns; a file of texts has two, the text and its label",
                                    reader.columns()));
  }
  STORMO_ASSIGN_OR_RETURN(const std::size_t labels, find_label(reader, label));
  LabelledTexts result;
  std::vector<std::string> fields;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool more, reader.next(fields));
    if (!more) break;
    STORMO_RETURN_IF_ERROR(check_label(reader, labels, fields));
    result.texts.push_back(std::move(fields[1 - labels]));
    result.labels.push_back(std::move(fields[labels]));
  }
  if (result.texts.empty()) {
    return reader.error("the file has no rows; set data.header = false if its line is one");
  }
  return result;
}

}  // namespace stormo::data
