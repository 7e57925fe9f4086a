#include <stormo/base/printable.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>

#include <stormo/base/text.h>
#include <stormo/base/units.h>

namespace stormo {
namespace {

bool is_shown(char32_t code) {
  if (code < 0x20 || (code >= 0x7f && code < 0xa0)) return false;
  const bool turns = code == 0x061c || code == 0x200e || code == 0x200f ||
                     (code >= 0x202a && code <= 0x202e) || (code >= 0x2066 && code <= 0x2069);
  const bool breaks = code == 0x2028 || code == 0x2029;
  return !turns && !breaks;
}

std::string escaped(std::string_view text, std::string_view kept) {
  std::string out;
  out.reserve(text.size());
  while (!text.empty()) {
    const Character c = first_character(text);
    const std::size_t length = std::max<std::size_t>(c.length, 1);
    if (c.length > 0 && (is_shown(c.code) || kept.find(text[0]) != std::string_view::npos))
      out += text.substr(0, length);
    else if (text[0] == '\n')
      out += "\\n";
    else if (c.code < 0x80)
      out += fmt::format("\\x{:02x}", static_cast<unsigned char>(text[0]));
    else
      out += fmt::format("\\u{:04x}", static_cast<std::uint32_t>(c.code));
    text.remove_prefix(length);
  }
  return out;
}

/// At most `most` bytes, and how much is missing.
std::string shortened(std::string_view text, std::size_t most) {
  if (text.size() <= most) return std::string(text);
  return fmt::format("{} ... ({} left out)", text.substr(0, most),
                     format_bytes(text.size() - most));
}

}  // namespace

std::string printable(std::string_view text) { return escaped(text, "\n\t"); }
std::string printable_line(std::string_view text) { return escaped(text, "\t"); }

std::string message_text(std::string_view text) {
  constexpr std::size_t kMost = std::size_t{64} << 10;
  std::string out = printable(shortened(text, kMost));
  for (std::size_t at = 0; (at = out.find('\n', at)) != std::string::npos; ++at) {
    const bool indented = at + 1 < out.size() && out[at + 1] == ' ';
    if (!indented) out.insert(at + 1, "  ");
  }
  return out;
}

std::string quoted_text(std::string_view text) {
  constexpr std::size_t kMost = std::size_t{8} << 10;
  std::string out = shortened(text, kMost);
  for (std::size_t at = 0; (at = out.find('\n', at)) != std::string::npos; ++at)
    out.insert(at + 1, "    ");
  return printable(out);
}

}  // namespace stormo
