#include <stormo/data/table/table.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>
#include <string_view>
#include <utility>

namespace stormo::data {
namespace {

/// A finite number, with spaces around it allowed.
bool parse_number(std::string_view text, double& value) {
  while (text.starts_with(' ')) text.remove_prefix(1);
  while (text.ends_with(' ')) text.remove_suffix(1);
  if (text.starts_with('+')) text.remove_prefix(1);
  const auto [end, failed] = std::from_chars(text.data(), text.data() + text.size(), value);
  return failed == std::errc() && end == text.data() + text.size() && std::isfinite(value);
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
    if (!at) missing += fmt::format("{}\"{}\"", missing.empty() ? "" : ", ", column);
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

/// Everything but the rows: which columns are wanted.
Result<std::vector<std::size_t>> choose_columns(const DelimitedReader& reader,
                                                const TableOptions& options,
                                                std::optional<std::size_t> label) {
  if (!options.columns.empty()) {
    STORMO_ASSIGN_OR_RETURN(std::vector<std::size_t> columns, find_columns(reader, options));
    if (!label || std::ranges::find(columns, *label) == columns.end()) return columns;
    return reader.error(
        fmt::format("data.columns names \"{}\", which is the label: choose another by data.label",
                    reader.name(*label)));
  }
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < reader.columns(); ++c) {
    if (c != label) columns.push_back(c);
  }
  STORMO_RETURN_IF_ERROR(check_names(reader, columns));
  return columns;
}

}  // namespace

Result<Table> read_table(const std::string& path, const TableOptions& options) {
  STORMO_ASSIGN_OR_RETURN(DelimitedReader reader, DelimitedReader::open(path, options.form));
  std::optional<std::size_t> label;
  if (options.labelled) {
    STORMO_ASSIGN_OR_RETURN(label, find_label(reader, options.label));
  }
  STORMO_ASSIGN_OR_RETURN(const std::vector<std::size_t> columns,
                          choose_columns(reader, options, label));
  Table table;
  for (const std::size_t c : columns) table.columns.push_back(reader.key(c));
  std::vector<std::string> fields;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool more, reader.next(fields));
    if (!more) break;
    for (const std::size_t c : columns) {
      double value = 0;
      if (!parse_number(fields[c], value)) {
        return reader.error(
            fmt::format("{}: \"{}\" is no finite number; write one, remove the "
                        "line, or choose other columns by data.columns",
                        reader.name(c), fields[c]));
      }
      table.features.push_back(value);
    }
    if (label) table.labels.push_back(std::move(fields[*label]));
    table.lines.push_back(reader.line());
  }
  if (table.lines.empty()) {
    return reader.error("the table has no rows; set data.header = false if its line is one");
  }
  return table;
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
    result.texts.push_back(std::move(fields[1 - labels]));
    result.labels.push_back(std::move(fields[labels]));
  }
  if (result.texts.empty()) {
    return reader.error("the file has no rows; set data.header = false if its line is one");
  }
  return result;
}

}  // namespace stormo::data
