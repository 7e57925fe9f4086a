#include <stormo/data/text/vocabulary.h>

#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include <stormo/base/check.h>

namespace stormo::data {
namespace {

constexpr std::int64_t kBytes = 256;

/// Bytes of the character that starts with `lead`; 0 when none does.
std::size_t length_of(std::uint8_t lead) {
  if (lead < 0x80) return 1;
  if (lead < 0xC2) return 0;  // continuation, or a form longer than needed
  if (lead < 0xE0) return 2;
  if (lead < 0xF0) return 3;
  return lead < 0xF5 ? 4 : 0;
}

/// Takes the first character off `text`; nothing when it is not well-formed UTF-8 (RFC 3629:
/// shortest form, no surrogates, at most U+10FFFF).
std::optional<char32_t> take_character(std::string_view& text) {
  const auto byte = [&](std::size_t i) { return static_cast<std::uint8_t>(text[i]); };
  const std::uint8_t lead = byte(0);
  const std::size_t length = length_of(lead);
  if (length == 0 || length > text.size()) return std::nullopt;
  char32_t c = length == 1 ? lead : lead & (0x7Fu >> length);
  for (std::size_t i = 1; i < length; ++i) {
    if ((byte(i) & 0xC0u) != 0x80u) return std::nullopt;
    c = c << 6 | (byte(i) & 0x3Fu);
  }
  const bool overlong = (length == 3 && c < 0x800) || (length == 4 && c < 0x10000);
  if (overlong || (c >= 0xD800 && c <= 0xDFFF) || c > 0x10FFFF) return std::nullopt;
  text.remove_prefix(length);
  return c;
}

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
    const auto c = take_character(rest);
    if (!c) {
      return invalid_argument(fmt::format(
          "the text is not UTF-8 at byte {}; convert it, or use the vocabulary of bytes",
          text.size() - rest.size()));
    }
    result.push_back(*c);
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
