#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stormo::data {

/// Words separated by white space, and optionally pairs of neighbouring words, with their ids.
class WordVocabulary {
 public:
  static constexpr std::int32_t kPadding = 0;
  static constexpr std::int32_t kUnknown = 1;

  /// The `most` words (and pairs) that are the most frequent in `texts` (ties: in ascending order),
  /// with ids from 2 on.
  static WordVocabulary of(std::span<const std::string> texts, std::int64_t most,
                           bool pairs = false);
  /// From the list words() of another vocabulary; all different.
  static WordVocabulary listed(std::vector<std::string> words, bool pairs);

  /// Number of ids, kPadding and kUnknown among them.
  std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()) + 2; }
  /// Ids of the words of `text`, then of its pairs, at most `longest`; kUnknown for words that are
  /// not in the vocabulary, and for a text without words.
  std::vector<std::int32_t> encode(std::string_view text, std::int64_t longest) const;
  /// Words and pairs in the order of their ids, from 2 on.
  std::vector<std::string> words() const;
  bool pairs() const { return pairs_; }
  bool operator==(const WordVocabulary&) const = default;

 private:
  bool pairs_ = false;
  std::unordered_map<std::string, std::int32_t> ids_;
};

}  // namespace stormo::data
