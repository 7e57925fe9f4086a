#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/classes.h>
#include <stormo/data/text/vocabulary.h>
#include <stormo/data/text/word_vocabulary.h>

namespace stormo::train {

/// What the training data have settled about samples, beside what the recipe says: with both, any
/// other sample becomes an input of the model, and an output becomes an answer. Kept in
/// checkpoints.
struct Preprocessing {
  std::vector<std::int64_t> input;             ///< shape of a sample of numbers: {1, 28, 28}
  data::Classes classes;                       ///< none: targets are no classes
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
  Scale target;                      ///< of targets that are numbers
  bool operator==(const Preprocessing&) const = default;
};

/// One JSON object; texts that are no UTF-8 are kept to the byte.
std::string to_json(const Preprocessing& preprocessing);

/// kCorrupt says what is wrong with a text that to_json() has not written.
Result<Preprocessing> parse_preprocessing(std::string_view json);

}  // namespace stormo::train
