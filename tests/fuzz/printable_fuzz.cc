// Texts of others on their way to a terminal.
#include <stormo/base/check.h>
#include <stormo/base/printable.h>

#include <algorithm>

#include "tests/fuzz/fuzz.h"

namespace stormo::fuzz {
namespace {

constexpr std::size_t kLongestSpelling = 6;  // "\u202e"

bool is_control(char c) {
  const auto byte = static_cast<unsigned char>(c);
  return byte < 0x20 || byte == 0x7f;
}

void check_text(std::string_view text) {
  const std::string shown = printable(text);
  STORMO_CHECK(std::none_of(shown.begin(), shown.end(),
                            [](char c) { return is_control(c) && c != '\n' && c != '\t'; }),
               "a control character reaches the terminal");
  STORMO_CHECK(printable(shown) == shown, "what is fine does not come back as it is");
  STORMO_CHECK(shown.size() <= kLongestSpelling * text.size(), "the text grows beyond its bound");
  const std::string line = printable_line(text);
  STORMO_CHECK(line.find('\n') == std::string::npos, "a line ends early");
  STORMO_CHECK(printable_line(line) == line, "a line that is fine does not come back as it is");
}

}  // namespace

std::vector<std::string> seeds() {
  return {"loss 1.25\tstep 7\n",  "\x1b[31mred\x1b[0m",
          "\x1b]0;title\x07",     "caf\xc3\xa9 \xe2\x80\xae",
          "\xff\xfe\x80",         "\xf0\x9f\x98\x80 \xed\xa0\x80",
          std::string("a\0b", 3), "\\x1b"};
}

}  // namespace stormo::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  stormo::fuzz::check_text(stormo::fuzz::as_text(data, size));
  return 0;
}
