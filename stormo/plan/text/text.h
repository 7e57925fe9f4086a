#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>

#include <stormo/base/status.h>

namespace stormo::plan {

/// Of the longest word.
inline constexpr std::size_t kMaxNameBytes = 256;

/// Reads the text form of plans (grammar: docs/adr/0003-plan-text-form.md). Internal to plan/.
///
/// Blanks between tokens do not matter, line ends do; blank lines and `#` comments are skipped.
/// After the first failure, later reads do nothing and return empty values, so a parser needs to
/// check for failure only once per line.
class TextReader {
 public:
  explicit TextReader(std::string_view text) : text_(text) {}

  bool ok() const { return status_.ok(); }
  /// kBadPlan "line:column: reason" of the first failure.
  const Status& status() const { return status_; }
  void fail(std::string_view reason);
  /// fail() at the position where the last token began.
  void fail_at_token(std::string_view reason);

  /// Skips blank lines and comments; true when nothing is left, or after a failure.
  bool at_end();
  /// True when this line holds no further token, or after a failure.
  bool at_line_end();
  void expect_line_end();

  /// The next token must begin with `symbol`, which is consumed.
  void expect(std::string_view symbol);
  /// Consumes `symbol` if it comes next.
  bool accept(std::string_view symbol);
  /// Reads `KIND v1`, or another version, at the start of a text.
  void expect_header(std::string_view kind, int version = 1);

  /// A bare word (letters, digits and _.+-) or a "quoted" one; at most `longest` bytes.
  std::string word(std::string_view what, std::size_t longest = kMaxNameBytes);
  /// A decimal integer in [low, high].
  std::int64_t integer(std::string_view what, std::int64_t low, std::int64_t high);
  int small_integer(std::string_view what, int low, int high) {
    return static_cast<int>(integer(what, low, high));
  }
  /// `KEY=integer`.
  std::int64_t field(std::string_view key, std::int64_t low, std::int64_t high);
  /// A finite decimal number >= 0.
  double real(std::string_view what);

 private:
  void skip_blanks();
  std::string quoted(std::string_view what, std::size_t longest);
  void fail_at(std::size_t position, std::string_view reason);

  std::string_view text_;
  std::size_t position_ = 0;
  std::size_t token_ = 0;  // where the last token began
  Status status_;
};

/// Appends the word without quotes if word() can read it so, else quoted with \" \\ and \xHH.
void append_word(std::string& out, std::string_view word);
void append_integer(std::string& out, std::int64_t value);
/// Appends the shortest form that is parsed to the same double.
void append_real(std::string& out, double value);

}  // namespace stormo::plan
