#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/table/delimited.h>

namespace stormo::data {

/// Which columns of a table are read, each by its name in the header or its number from 0.
struct TableOptions {
  DelimitedOptions form{};
  std::string label{};                    ///< empty: the last column
  std::vector<std::string> columns{};     ///< the features, in this order; empty: all but the label
  std::vector<std::string> exclude{};     ///< of all, those that are no features
  std::vector<std::string> categories{};  ///< features that are texts
  /// A number may be missing: empty, "?", "NA", "N/A", "NaN", "null" or "none", in upper or lower
  /// case.
  bool may_be_missing = false;
  /// false: labels are not read and may be absent. Then `columns` lists all features; a table
  /// without header that has exactly this number of columns has them in this order.
  bool labelled = true;
  /// A column that names each row, and is no feature: rows are sorted by it. Empty: none.
  std::string id{};
  /// The table is one of several that have the columns of the same rows: of `columns` those are
  /// read that it has, and unless `labelled` it must not have the label.
  bool one_of_several = false;
  /// Of that many features, the first one that is read and their number; empty: all.
  std::function<Result<std::pair<std::size_t, std::size_t>>(std::size_t features)> share{};
  bool keeps_labels = true;  ///< false: labels are found, but not kept
};

/// A table of numbers and texts, with a label per row.
struct Table {
  std::vector<std::string> columns;  ///< the features, as TableOptions::columns
  /// Row-major: lines.size() x columns.size(). A missing number is NaN, a text is its place in
  /// `texts`.
  std::vector<double> features;
  std::vector<std::vector<std::string>> texts;  ///< of each column; empty: of numbers
  std::vector<std::string> labels;              ///< empty when not labelled
  std::vector<std::int64_t> lines;              ///< of the file, from 1, for each row
  std::vector<std::string> ids;  ///< ascending, all different; empty without TableOptions::id
};

/// Reads CSV or TSV: the label's column is a text, features are finite numbers ("1", "-2.5",
/// "1e-3"; "1e-400" is 0) or texts, other columns are ignored. kInvalidArgument names file, line
/// and column of an invalid value.
Result<Table> read_table(const std::string& path, const TableOptions& options);

/// The columns of several tables of the same rows as one table, in the order of the tables; the
/// labels are those of the table that has some. kInvalidArgument where their rows, or ids, differ.
Result<Table> join_tables(std::vector<Table> tables);

/// Some rows of a table, in the order given.
Table select_rows(const Table& table, std::span<const std::int64_t> rows);

/// The labels as numbers; kInvalidArgument names the line of a label that is not a number.
Result<std::vector<double>> label_numbers(const Table& table);

/// A finite number, with spaces around it allowed; what is too small for a double is 0.
bool parse_number(std::string_view text, double& value);

/// Texts with a label each.
struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<std::string> labels;
};

LabelledTexts select_rows(const LabelledTexts& texts, std::span<const std::int64_t> rows);

/// Reads a table of two columns, one of them that of `label` (empty: the last).
Result<LabelledTexts> read_labelled_texts(const std::string& path, const DelimitedOptions& form,
                                          const std::string& label);

}  // namespace stormo::data
