#include <stormo/data/text/vocabulary.h>

#include <fmt/format.h>

#include <algorithm>

#include <stormo/base/check.h>
#include <stormo/base/text.h>

namespace stormo::data {
namespace {

constexpr std::int64_t kBytes = 256;

void append_utf8(std::string& out, char32_t c) {
  const auto put = [&](char32_t byte) { out.push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | c >> 6);
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | c >> 12);
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | c >> 18);
    put(0x80 | (c >> 12 & 0x3F));
    put(0x80 | (c >> 6 & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

Result<std::u32string> to_code_points(std::string_view text) {
  std::u32string result;
  result.reserve(text.size());
  for (std::string_view rest = text; !rest.empty();) {
    const Character c = first_character(rest);
    if (c.length == 0) {
      return invalid_argument(fmt::format(
          "the text is not UTF-8 at byte {}; convert it, or use the vocabulary of bytes",
          text.size() - rest.size()));
    }
    result.push_back(c.code);
    rest.remove_prefix(c.length);
  }
  return result;
}

}  // namespace

Result<Vocabulary> Vocabulary::characters(std::string_view text) {
  STORMO_ASSIGN_OR_RETURN(const std::u32string all, to_code_points(text));
  if (all.empty()) {
    return invalid_argument("the text is empty, so it has no characters; set data.path to a text");
  }
  std::vector<char32_t> distinct(all.begin(), all.end());
  std::ranges::sort(distinct);
  distinct.erase(std::ranges::unique(distinct).begin(), distinct.end());
  return Vocabulary(std::move(distinct));
}

std::int64_t Vocabulary::size() const {
  return characters_.empty() ? kBytes : std::ssize(characters_);
}

Result<std::vector<std::int32_t>> Vocabulary::encode(std::string_view text) const {
  std::vector<std::int32_t> ids;
  ids.reserve(text.size());
  if (characters_.empty()) {
    for (const char c : text) ids.push_back(static_cast<std::uint8_t>(c));
    return ids;
  }
  STORMO_ASSIGN_OR_RETURN(const std::u32string all, to_code_points(text));
  for (const char32_t c : all) {
    const auto place = std::ranges::lower_bound(characters_, c);
    if (place == characters_.end() || *place != c) {
      std::string shown;
      append_utf8(shown, c);
      return invalid_argument(
          fmt::format("character \"{}\" (U+{:04X}) is not in the vocabulary of {} characters; use "
                      "only characters "
                      "of the training text",
                      shown, static_cast<std::uint32_t>(c), characters_.size()));
    }
    ids.push_back(static_cast<std::int32_t>(place - characters_.begin()));
  }
  return ids;
}

std::string Vocabulary::decode(std::span<const std::int64_t> ids) const {
  std::string text;
  for (const std::int64_t id : ids) {
    STORMO_CHECK(id >= 0 && id < size(), "id out of the vocabulary");
    if (characters_.empty()) {
      text.push_back(static_cast<char>(id));
    } else {
      append_utf8(text, characters_[static_cast<std::size_t>(id)]);
    }
  }
  return text;
}

}  // namespace stormo::data
