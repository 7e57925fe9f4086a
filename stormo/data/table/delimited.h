#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>

namespace stormo::data {

/// How the lines of a table are divided into fields.
struct DelimitedOptions {
  /// ',' (fields may be quoted as in RFC 4180, but stay on one line) or '\t' (no quotes).
  char separator = ',';
  bool header = true;  ///< the first line holds the names of the columns
};

/// Reads a table line by line. Every line has as many fields as the first; empty lines are left
/// out; lines end in LF or CRLF. Errors name file and line: "train.csv:7: ...".
class DelimitedReader {
 public:
  /// Reads the whole file. kNotFound, kIo, or kInvalidArgument for an empty file.
  static Result<DelimitedReader> open(const std::string& path, const DelimitedOptions& options);

  std::size_t columns() const { return columns_; }
  /// The column of that name in the header, else of that number from 0; empty when there is none.
  std::optional<std::size_t> find(std::string_view column) const;
  /// Name of a column in the header, else its number; find() takes both.
  std::string key(std::size_t column) const;
  /// The name of a column in messages: its name, or "column 3".
  std::string name(std::size_t column) const;
  /// "there are columns 0 to 3, and the first line names a, b": the columns that find() accepts.
  std::string known() const;
  /// The fields of the next line; false at the end.
  Result<bool> next(std::vector<std::string>& fields);
  /// Line number, from 1, of the last fields of next().
  std::int64_t line() const { return line_; }
  /// kInvalidArgument about the last line of next().
  Status error(std::string_view what) const;

 private:
  DelimitedReader(std::string path, std::string text, char separator)
      : path_(std::move(path)), text_(std::move(text)), separator_(separator) {}
  Result<bool> read_line(std::vector<std::string>& fields);
  Status split(std::string_view line, std::vector<std::string>& fields) const;

  std::string path_;
  std::string text_;
  char separator_;
  std::size_t at_ = 0;
  std::int64_t line_ = 0;
  std::size_t columns_ = 0;
  std::vector<std::string> names_;
};

}  // namespace stormo::data
