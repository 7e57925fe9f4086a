#include <stormo/plan/text/text.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include <stormo/base/text.h>

namespace stormo::plan {
namespace {

bool is_blank(char c) { return c == ' ' || c == '\t' || c == '\r'; }

bool is_bare(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' ||
         c == '.' || c == '+' || c == '-';
}

int hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  if (c >= 'A' && c <= 'F') return c - 'A' + 10;
  return -1;
}

}  // namespace

void TextReader::fail_at(std::size_t position, std::string_view reason) {
  if (!ok()) return;
  const std::string_view before = text_.substr(0, std::min(position, text_.size()));
  const auto line = 1 + std::count(before.begin(), before.end(), '\n');
  const std::size_t newline = before.rfind('\n');
  const std::size_t column =
      newline == std::string_view::npos ? before.size() + 1 : before.size() - newline;
  status_ = Status(Code::kBadPlan, std::to_string(line) + ":" + std::to_string(column) + ": " +
                                       std::string(reason));
}

void TextReader::fail(std::string_view reason) {
  skip_blanks();
  fail_at(position_, reason);
}

void TextReader::fail_at_token(std::string_view reason) { fail_at(token_, reason); }

void TextReader::skip_blanks() {
  while (position_ < text_.size() && is_blank(text_[position_])) ++position_;
  if (position_ < text_.size() && text_[position_] == '#') {
    position_ = std::min(text_.find('\n', position_), text_.size());
  }
}

bool TextReader::at_line_end() {
  if (!ok()) return true;
  skip_blanks();
  return position_ == text_.size() || text_[position_] == '\n';
}

bool TextReader::at_end() {
  while (ok() && at_line_end()) {
    if (position_ == text_.size()) return true;
    ++position_;
  }
  return !ok();
}

void TextReader::expect_line_end() {
  if (!at_line_end()) fail("unexpected text before the end of the line");
}

bool TextReader::accept(std::string_view symbol) {
  if (!ok()) return false;
  skip_blanks();
  if (!text_.substr(position_).starts_with(symbol)) return false;
  token_ = position_;
  position_ += symbol.size();
  return true;
}

void TextReader::expect(std::string_view symbol) {
  if (!accept(symbol)) fail("expected '" + std::string(symbol) + "'");
}

void TextReader::expect_header(std::string_view kind, int version) {
  const std::string known = "v" + std::to_string(version);
  const std::string wanted = "expected '" + std::string(kind) + " " + known + "'";
  if (at_end()) fail(wanted + ", found nothing");
  if (!accept(kind)) fail(wanted + " in front of everything else");
  const std::string found = word("the version of the text form");
  if (ok() && found != known) {
    fail_at_token("version '" + found + "' is unknown; this program reads " + known);
  }
}

std::string TextReader::word(std::string_view what, std::size_t longest) {
  if (!ok()) return {};
  skip_blanks();
  token_ = position_;
  if (position_ < text_.size() && text_[position_] == '"') return quoted(what, longest);
  while (position_ < text_.size() && is_bare(text_[position_])) ++position_;
  if (position_ == token_) fail("expected " + std::string(what));
  if (position_ - token_ > longest) fail_at_token(std::string(what) + " is too long");
  return ok() ? std::string(text_.substr(token_, position_ - token_)) : std::string();
}

std::string TextReader::quoted(std::string_view what, std::size_t longest) {
  std::string out;
  for (++position_; position_ < text_.size() && text_[position_] != '\n'; ++position_) {
    const char c = text_[position_];
    if (out.size() > longest) break;
    if (c == '"') {
      ++position_;
      return out;
    }
    if (c != '\\') {
      out += c;
      continue;
    }
    const std::string_view rest = text_.substr(position_ + 1, 3);
    if (rest.starts_with('"') || rest.starts_with('\\')) {
      out += rest[0];
      ++position_;
    } else if (rest.size() == 3 && rest[0] == 'x' && hex_digit(rest[1]) >= 0 &&
               hex_digit(rest[2]) >= 0) {
      out += static_cast<char>(hex_digit(rest[1]) * 16 + hex_digit(rest[2]));
      position_ += 3;
    } else {
      fail_at(position_, "unknown escape; write \\\" \\\\ or \\xHH");
      return {};
    }
  }
  fail_at_token(std::string(what) +
                (out.size() > kMaxNameBytes ? " is too long" : " lacks its closing quote"));
  return {};
}

std::int64_t TextReader::integer(std::string_view what, std::int64_t low, std::int64_t high) {
  if (!ok()) return low;
  skip_blanks();
  token_ = position_;
  std::int64_t value = 0;
  const char* end = text_.data() + text_.size();
  const auto [stop, error] = std::from_chars(text_.data() + position_, end, value);
  if (error == std::errc::invalid_argument) {
    fail("expected " + std::string(what) + ", a number");
    return low;
  }
  position_ = static_cast<std::size_t>(stop - text_.data());
  if (error != std::errc{} || value < low || value > high) {
    fail_at_token(std::string(what) + " must be in " + std::to_string(low) + ".." +
                  std::to_string(high));
    return low;
  }
  return value;
}

std::int64_t TextReader::field(std::string_view key, std::int64_t low, std::int64_t high) {
  expect(key);
  expect("=");
  return integer(key, low, high);
}

double TextReader::real(std::string_view what) {
  if (!ok()) return 0;
  skip_blanks();
  token_ = position_;
  double value = 0;
  const char* end = text_.data() + text_.size();
  const auto [stop, error] = std::from_chars(text_.data() + position_, end, value);
  if (error != std::errc{} || !std::isfinite(value) || std::signbit(value)) {
    fail(std::string(what) + " must be a finite number >= 0");
    return 0;
  }
  position_ = static_cast<std::size_t>(stop - text_.data());
  return value;
}

void append_word(std::string& out, std::string_view word) {
  if (!word.empty() && std::all_of(word.begin(), word.end(), is_bare)) {
    out += word;
    return;
  }
  static constexpr char kHex[] = "0123456789abcdef";
  out += '"';
  for (const char c : word) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (byte < 0x20 || byte == 0x7f) {
      out += "\\x";
      out += kHex[byte >> 4];
      out += kHex[byte & 15];
    } else {
      out += c;
    }
  }
  out += '"';
}

void append_integer(std::string& out, std::int64_t value) {
  char digits[24];
  const auto [end, error] = std::to_chars(digits, digits + sizeof digits, value);
  out.append(digits, end);
}

void append_real(std::string& out, double value) { out += shortest(value); }

}  // namespace stormo::plan
