#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/classes.h>
#include <stormo/data/text/vocabulary.h>
#include <stormo/data/text/word_vocabulary.h>

namespace stormo::train {

/// The part of preprocessing that is derived from the training data. Together with the recipe it
/// converts any other sample to an input of the model, and an output to a prediction. Kept in
/// checkpoints.
struct Preprocessing {
  std::vector<std::int64_t> input;             ///< shape of a sample of numbers: {1, 28, 28}
  data::Classes classes;                       ///< none if targets are not classes
  std::optional<data::Vocabulary> vocabulary;  ///< of "text"
  std::optional<data::WordVocabulary> words;   ///< of "text_classification"
  /// A number of the data becomes (number - mean) / stddev.
  struct Scale {
    double mean = 0;
    double stddev = 1;
    double apply(double number) const { return (number - mean) / stddev; }
    double undo(double value) const { return value * stddev + mean; }
    bool operator==(const Scale&) const = default;
  };

  std::vector<std::string> columns;  ///< of tables: the features
  std::vector<Scale> scales;         ///< of the columns; empty: they stay as they are
  /// What replaces a missing number of each column; empty: none may be missing.
  std::vector<double> fills;
  std::vector<std::string> indicators;  ///< columns with a second feature: 1 if missing, else 0
  /// Columns of texts: a feature of 0 or 1 for each of these texts, in ascending order. Any other
  /// text is 0 in all of them.
  std::map<std::string, std::vector<std::string>> categories;
  Scale target;  ///< of targets that are numbers
  bool operator==(const Preprocessing&) const = default;

  /// The features that the columns of a table become.
  std::int64_t features() const;
};

/// One JSON object; texts that are not UTF-8 keep their bytes.
std::string to_json(const Preprocessing& preprocessing);

/// Inverse of to_json(); kCorrupt says what is wrong with any other text.
Result<Preprocessing> parse_preprocessing(std::string_view json);

}  // namespace stormo::train
