#pragma once

#include <charconv>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace stormo {

/// The whole of a text as a number, without blanks or '+'; `base` of a whole one. Empty for
/// anything else.
template <class Number, class... Base>
std::optional<Number> number_in(std::string_view text, Base... base) {
  Number number{};
  const char* const end = text.data() + text.size();
  const auto [rest, error] = std::from_chars(text.data(), end, number, base...);
  return error == std::errc{} && rest == end ? std::optional(number) : std::nullopt;
}

/// The fewest digits that number_in() reads as the same number: "0.1", "1e-07".
std::string shortest(double number);

/// The parts of a text that `separator` ends; the last one may lack it. "a,,b" and "a,,b," are "a",
/// "" and "b".
std::vector<std::string_view> split(std::string_view text, char separator);

/// With small letters for those of ASCII.
std::string lower_case(std::string_view text);

/// A character of well-formed UTF-8 (RFC 3629: shortest form, no surrogates, at most U+10FFFF).
struct Character {
  char32_t code = 0;
  std::size_t length = 0;  ///< bytes; 0: not a character
};
/// The one that a text begins with, which must not be empty.
Character first_character(std::string_view text);

}  // namespace stormo
