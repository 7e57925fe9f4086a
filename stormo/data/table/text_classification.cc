#include <stormo/data/table/text_classification.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/data/fingerprint.h>

namespace stormo::data {

Result<std::shared_ptr<const TextClassification>> TextClassification::create(
    const LabelledTexts& samples, const WordVocabulary& vocabulary, const Classes& classes,
    std::int64_t longest) {
  std::shared_ptr<TextClassification> data(new TextClassification());
  for (std::size_t i = 0; i < samples.texts.size(); ++i) {
    STORMO_ASSIGN_OR_RETURN(const std::int64_t label, classes.find(samples.labels[i]));
    const std::vector<std::int32_t> words = vocabulary.encode(samples.texts[i], longest);
    data->begin_.push_back(std::ssize(data->words_));
    data->lengths_.push_back(static_cast<std::int32_t>(words.size()));
    data->labels_.push_back(label);
    data->words_.insert(data->words_.end(), words.begin(), words.end());
  }
  return std::shared_ptr<const TextClassification>(std::move(data));
}

Batch TextClassification::get(std::span<const std::int64_t> indices, std::int64_t /*epoch*/) const {
  std::int64_t longest = 1;
  for (const std::int64_t index : indices) {
    STORMO_CHECK(index >= 0 && index < size(), "sample index out of range");
    longest = std::max<std::int64_t>(longest, lengths_[static_cast<std::size_t>(index)]);
  }
  Batch batch{torch::empty({std::ssize(indices), longest}, torch::kInt64),
              torch::empty({std::ssize(indices)}, torch::kInt64)};
  auto* input = batch.input.mutable_data_ptr<std::int64_t>();
  auto* target = batch.target.mutable_data_ptr<std::int64_t>();
  for (const std::int64_t index : indices) {
    const auto i = static_cast<std::size_t>(index);
    auto* const end = std::copy_n(words_.begin() + begin_[i], lengths_[i], input);
    input += longest;
    std::fill(end, input, WordVocabulary::kPadding);
    *target++ = labels_[i];
  }
  return batch;
}

std::uint64_t TextClassification::fingerprint() const {
  Fingerprint content;
  content.add(std::as_bytes(std::span(words_)));
  content.add(std::as_bytes(std::span(lengths_)));
  content.add(std::as_bytes(std::span(labels_)));
  return content.value();
}

}  // namespace stormo::data
