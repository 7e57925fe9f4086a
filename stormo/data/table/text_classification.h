#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/classes.h>
#include <stormo/data/dataset.h>
#include <stormo/data/table/table.h>
#include <stormo/data/text/word_vocabulary.h>

namespace stormo::data {

/// Texts with a class each, as ids of words. A batch is [B, T] and [B], both int64; T is the length
/// of the batch's longest text, shorter ones are filled up with WordVocabulary::kPadding.
class TextClassification final : public Dataset {
 public:
  /// Texts are cut after `longest` >= 1 words. kInvalidArgument for a label that is not a class.
  static Result<std::shared_ptr<const TextClassification>> create(const LabelledTexts& samples,
                                                                  const WordVocabulary& vocabulary,
                                                                  const Classes& classes,
                                                                  std::int64_t longest);

  std::int64_t size() const override { return std::ssize(labels_); }
  Batch get(std::span<const std::int64_t> indices, std::int64_t epoch) const override;
  SampleLabels strata() const override {
    return std::vector<std::int32_t>(labels_.begin(), labels_.end());
  }
  std::uint64_t fingerprint() const override;
  /// Words of each text.
  std::span<const std::int32_t> lengths() const override { return lengths_; }

 private:
  TextClassification() = default;

  std::vector<std::int32_t> words_;  // of all texts, one behind the other
  std::vector<std::int64_t> begin_;  // of each text in words_
  std::vector<std::int32_t> lengths_;
  std::vector<std::int64_t> labels_;
};

}  // namespace stormo::data
