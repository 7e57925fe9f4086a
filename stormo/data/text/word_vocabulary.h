#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace stormo::data {

/// Words between white space, on request pairs of neighbouring words too, and their ids.
class WordVocabulary {
 public:
  static constexpr std::int32_t kPadding = 0;
  static constexpr std::int32_t kUnknown = 1;

  /// The `most` words (and pairs) that are the most frequent in `texts` (ties: in ascending order),
  /// with ids from 2 on.
  static WordVocabulary of(std::span<const std::string> texts, std::int64_t most,
                           bool pairs = false);
  /// Those of another one, as words() lists them; all different.
  static WordVocabulary listed(std::vector<std::string> words, bool pairs);

  /// Number of ids, kPadding and kUnknown among them.
  std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()) + 2; }
  /// The words of `text`, then its pairs, the first `longest` of them; kUnknown for what is not in
  /// the vocabulary, and for a text without any word.
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
