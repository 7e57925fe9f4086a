#include <stormo/data/table/delimited.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include <stormo/base/text.h>
#include <stormo/data/text/text.h>

namespace stormo::data {
namespace {

constexpr std::string_view kByteOrderMark = "\xef\xbb\xbf";

/// Takes a field in quotes off `line`, with the separator behind it; false when the quotes do not
/// end, or something else follows them.
bool take_quoted(std::string_view& line, char separator, std::string& field) {
  for (std::size_t i = 1; i < line.size(); ++i) {
    if (line[i] != '"') {
      field.push_back(line[i]);
    } else if (i + 1 < line.size() && line[i + 1] == '"') {
      field.push_back(line[i++]);
    } else {
      line.remove_prefix(i + 1);
      return line.empty() || line.front() == separator;
    }
  }
  return false;
}

}  // namespace

Result<DelimitedReader> DelimitedReader::open(const std::string& path,
                                              const DelimitedOptions& options) {
  STORMO_ASSIGN_OR_RETURN(std::string text, read_text(path));
  DelimitedReader reader(path, std::move(text), options.separator);
  if (reader.text_.starts_with(kByteOrderMark)) reader.at_ = kByteOrderMark.size();
  const std::size_t start = reader.at_;
  std::vector<std::string> first;
  STORMO_ASSIGN_OR_RETURN(const bool any, reader.read_line(first));
  if (!any) return reader.error("the table is empty; set data.path to another");
  reader.columns_ = first.size();
  if (options.header) reader.names_ = std::move(first);
  if (!options.header) {
    reader.at_ = start;
    reader.line_ = 0;
  }
  return reader;
}

std::optional<std::size_t> DelimitedReader::find(std::string_view column) const {
  const auto named = std::ranges::find(names_, column);
  if (named != names_.end()) return static_cast<std::size_t>(named - names_.begin());
  const auto number = number_in<std::size_t>(column);
  return number && *number < columns_ ? number : std::nullopt;
}

std::string DelimitedReader::key(std::size_t column) const {
  return names_.empty() ? std::to_string(column) : names_[column];
}

std::string DelimitedReader::known() const {
  return fmt::format("there are columns 0 to {}, and {}", columns_ - 1,
                     names_.empty()
                         ? "set data.header = true when the first line holds names"
                         : fmt::format("the first line names {}", fmt::join(names_, ", ")));
}

std::string DelimitedReader::name(std::size_t column) const {
  return names_.empty() ? fmt::format("column {}", column) : names_[column];
}

Status DelimitedReader::error(std::string_view what) const {
  return invalid_argument(fmt::format("{}:{}: {}", path_, line_, what));
}

Result<bool> DelimitedReader::next(std::vector<std::string>& fields) {
  STORMO_ASSIGN_OR_RETURN(const bool any, read_line(fields));
  if (any && fields.size() != columns_) {
    return error(fmt::format("{} fields, the first line has {}; mend the line or remove it",
                             fields.size(), columns_));
  }
  return any;
}

Result<bool> DelimitedReader::read_line(std::vector<std::string>& fields) {
  while (at_ < text_.size()) {
    const std::size_t end = std::min(text_.find('\n', at_), text_.size());
    std::string_view line = std::string_view(text_).substr(at_, end - at_);
    at_ = std::min(end + 1, text_.size());
    ++line_;
    if (line.ends_with('\r')) line.remove_suffix(1);
    if (line.empty()) continue;
    STORMO_RETURN_IF_ERROR(split(line, fields));
    return true;
  }
  return false;
}

Status DelimitedReader::split(std::string_view line, std::vector<std::string>& fields) const {
  fields.clear();
  for (;;) {
    std::string& field = fields.emplace_back();
    if (separator_ == ',' && line.starts_with('"')) {
      if (!take_quoted(line, separator_, field)) {
        return error(
            fmt::format("the quotes of field {} do not end before the next comma or the "
                        "end of the line; close them, or write \"\" for a quote",
                        fields.size() - 1));
      }
    } else {
      field = line.substr(0, line.find(separator_));
      line.remove_prefix(field.size());
    }
    if (line.empty()) return {};
    line.remove_prefix(1);
  }
}

}  // namespace stormo::data
