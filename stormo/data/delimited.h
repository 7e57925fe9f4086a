#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// How the lines of a table are cut into fields.
struct DelimitedOptions {
  /// ',' (fields may be quoted as in RFC 4180, but stay on one line) or '\t' (no quotes).
  char separator = ',';
  bool header = true;  ///< the first line holds the names of the columns
  /// Column of the label: a name of the header, or a number from 0; empty: the last one.
  std::string label;
};

/// Reads a table line by line. Every line has as many fields as the first; empty lines are left
/// out; lines end in LF or CRLF. Errors name file and line: "train.csv:7: ...".
class DelimitedReader {
 public:
  /// Reads the whole file. kNotFound, kIo, or kInvalidArgument for an empty file, one column only,
  /// or a label that is no column.
  static Result<DelimitedReader> open(const std::string& path, const DelimitedOptions& options);

  std::size_t columns() const { return columns_; }
  std::size_t label_column() const { return label_; }
  /// Name of a column, or "column 3".
  std::string name(std::size_t column) const;
  /// The fields of the next line; false at the end.
  Result<bool> next(std::vector<std::string>& fields);
  /// kInvalidArgument about the line that next() gave last.
  Status error(std::string_view what) const;

 private:
  DelimitedReader(std::string path, std::string text, char separator)
      : path_(std::move(path)), text_(std::move(text)), separator_(separator) {}
  Status find_label(const std::string& label);
  Result<bool> read_line(std::vector<std::string>& fields);
  Status split(std::string_view line, std::vector<std::string>& fields) const;

  std::string path_;
  std::string text_;
  char separator_;
  std::size_t at_ = 0;
  std::int64_t line_ = 0;
  std::size_t columns_ = 0;
  std::size_t label_ = 0;
  std::vector<std::string> names_;
};

}  // namespace stormo::data
