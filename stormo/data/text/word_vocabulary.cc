#include <stormo/data/text/word_vocabulary.h>

#include <algorithm>
#include <utility>

namespace stormo::data {
namespace {

constexpr std::string_view kSpace = " \t\r\n\v\f";

/// The words of `text`, then "word word" for each two neighbours.
std::vector<std::string> tokens_of(std::string_view text, bool pairs) {
  std::vector<std::string> tokens;
  for (std::size_t at = text.find_first_not_of(kSpace); at < text.size();) {
    const std::size_t end = std::min(text.find_first_of(kSpace, at), text.size());
    tokens.emplace_back(text.substr(at, end - at));
    at = text.find_first_not_of(kSpace, end);
  }
  const std::size_t words = tokens.size();
  for (std::size_t i = 0; pairs && i + 1 < words; ++i) {
    tokens.push_back(tokens[i] + ' ' + tokens[i + 1]);
  }
  return tokens;
}

}  // namespace

WordVocabulary WordVocabulary::of(std::span<const std::string> texts, std::int64_t most,
                                  bool pairs) {
  std::unordered_map<std::string, std::int64_t> counts;
  for (const std::string& text : texts) {
    for (std::string& token : tokens_of(text, pairs)) ++counts[std::move(token)];
  }
  std::vector<std::pair<std::int64_t, std::string>> order;  // most frequent first
  for (const auto& [token, count] : counts) order.emplace_back(-count, token);
  std::ranges::sort(order);
  if (std::ssize(order) > most) order.resize(static_cast<std::size_t>(most));
  std::vector<std::string> words;
  for (auto& [count, token] : order) words.push_back(std::move(token));
  return listed(std::move(words), pairs);
}

WordVocabulary WordVocabulary::listed(std::vector<std::string> words, bool pairs) {
  WordVocabulary vocabulary;
  vocabulary.pairs_ = pairs;
  for (std::string& word : words) {
    vocabulary.ids_.emplace(std::move(word), static_cast<std::int32_t>(vocabulary.size()));
  }
  return vocabulary;
}

std::vector<std::string> WordVocabulary::words() const {
  std::vector<std::string> words(ids_.size());
  for (const auto& [word, id] : ids_) words[static_cast<std::size_t>(id - kUnknown - 1)] = word;
  return words;
}

std::vector<std::int32_t> WordVocabulary::encode(std::string_view text,
                                                 std::int64_t longest) const {
  std::vector<std::int32_t> ids;
  for (const std::string& token : tokens_of(text, pairs_)) {
    if (std::ssize(ids) == longest) break;
    const auto found = ids_.find(token);
    ids.push_back(found == ids_.end() ? kUnknown : found->second);
  }
  if (ids.empty()) ids.push_back(kUnknown);
  return ids;
}

}  // namespace stormo::data
