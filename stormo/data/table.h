#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/delimited.h>

namespace stormo::data {

/// A table of numbers with a label per row.
struct Table {
  std::int64_t num_features = 0;
  std::vector<double> features;  ///< row-major: labels.size() x num_features
  std::vector<std::string> labels;
};

/// Reads CSV or TSV: the label's column is a text, all others are finite numbers ("1", "-2.5",
/// "1e-3"). kInvalidArgument names file, line and column of what is none.
Result<Table> read_table(const std::string& path, const DelimitedOptions& options);

/// Texts with a label each.
struct LabelledTexts {
  std::vector<std::string> texts;
  std::vector<std::string> labels;
};

/// Reads a table of two columns, one of them the label's.
Result<LabelledTexts> read_labelled_texts(const std::string& path, const DelimitedOptions& options);

}  // namespace stormo::data
