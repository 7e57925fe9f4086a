#include <stormo/data/table/table.h>

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <numeric>
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
  std::vector<std::size_t> columns;
  for (std::size_t c = 0; c < reader.columns(); ++c) {
    if (c != label && c != id) columns.push_back(c);
  }
  STORMO_RETURN_IF_ERROR(check_names(reader, columns));
  return columns;
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
Result<Table> sorted_by_id(Table table) {
  std::vector<std::size_t> order(table.ids.size());
  std::iota(order.begin(), order.end(), std::size_t{0});
  std::ranges::sort(order, {},
                    [&](std::size_t row) -> const std::string& { return table.ids[row]; });
  Table out{.columns = table.columns, .features = {}, .labels = {}, .lines = {}, .ids = {}};
  out.features.reserve(table.features.size());
  for (const std::size_t row : order) {
    if (!out.ids.empty() && out.ids.back() == table.ids[row]) {
      return invalid_argument(fmt::format(
          "lines {} and {} have the same value of data.id, \"{}\"; each row needs its own",
          out.lines.back(), table.lines[row], table.ids[row]));
    }
    const auto begin =
        table.features.begin() + static_cast<std::ptrdiff_t>(row * table.columns.size());
    out.features.insert(out.features.end(), begin,
                        begin + static_cast<std::ptrdiff_t>(table.columns.size()));
    if (!table.labels.empty()) out.labels.push_back(std::move(table.labels[row]));
    out.lines.push_back(table.lines[row]);
    out.ids.push_back(std::move(table.ids[row]));
  }
  return out;
}

}  // namespace

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
    if (label && options.keeps_labels) table.labels.push_back(std::move(fields[*label]));
    if (id) table.ids.push_back(std::move(fields[*id]));
    table.lines.push_back(reader.line());
  }
  if (table.lines.empty()) {
    return reader.error("the table has no rows; set data.header = false if its line is one");
  }
  if (!id) return table;
  Result<Table> sorted = sorted_by_id(std::move(table));
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
    result.texts.push_back(std::move(fields[1 - labels]));
    result.labels.push_back(std::move(fields[labels]));
  }
  if (result.texts.empty()) {
    return reader.error("the file has no rows; set data.header = false if its line is one");
  }
  return result;
}

}  // namespace stormo::data
