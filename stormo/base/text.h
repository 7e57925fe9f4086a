#pragma once

#include <charconv>
#include <optional>
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

/// The parts of a text that `separator` ends; the last one may lack it. "a,,b" and "a,,b," are "a",
/// "" and "b".
std::vector<std::string_view> split(std::string_view text, char separator);

}  // namespace stormo
