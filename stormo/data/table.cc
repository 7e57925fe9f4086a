#include <stormo/data/table.h>

#include <fmt/format.h>

#include <charconv>
#include <cmath>
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

}  // namespace

Result<Table> read_table(const std::string& path, const DelimitedOptions& options) {
  STORMO_ASSIGN_OR_RETURN(DelimitedReader reader, DelimitedReader::open(path, options));
  Table table;
  table.num_features = static_cast<std::int64_t>(reader.columns()) - 1;
  std::vector<std::string> fields;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool more, reader.next(fields));
    if (!more) break;
    for (std::size_t c = 0; c < fields.size(); ++c) {
      if (c == reader.label_column()) continue;
      double value = 0;
      if (!parse_number(fields[c], value)) {
        return reader.error(
            fmt::format("{}: \"{}\" is no finite number; write one, remove the "
                        "line, or leave the column out",
                        reader.name(c), fields[c]));
      }
      table.features.push_back(value);
    }
    table.labels.push_back(std::move(fields[reader.label_column()]));
  }
  if (table.labels.empty()) {
    return reader.error("the table has no rows; set data.header = false if its line is one");
  }
  return table;
}

Result<LabelledTexts> read_labelled_texts(const std::string& path,
                                          const DelimitedOptions& options) {
  STORMO_ASSIGN_OR_RETURN(DelimitedReader reader, DelimitedReader::open(path, options));
  if (reader.columns() != 2) {
    return reader.error(fmt::format("{} columns; a file of texts has two, the text and its label",
                                    reader.columns()));
  }
  LabelledTexts result;
  std::vector<std::string> fields;
  for (;;) {
    STORMO_ASSIGN_OR_RETURN(const bool more, reader.next(fields));
    if (!more) break;
    result.texts.push_back(std::move(fields[1 - reader.label_column()]));
    result.labels.push_back(std::move(fields[reader.label_column()]));
  }
  if (result.texts.empty()) {
    return reader.error("the file has no rows; set data.header = false if its line is one");
  }
  return result;
}

}  // namespace stormo::data
