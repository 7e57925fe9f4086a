#include <stormo/train/recipe/toml_depth.h>

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>

namespace stormo::train {
namespace {

/// Behind the comment or the text that begins at `at`; a text may be of several lines.
std::size_t skip(std::string_view text, std::size_t at) {
  const char first = text[at];
  if (first == '#') return std::min(text.find('\n', at), text.size());
  const std::string_view three = first == '"' ? R"(""")" : "'''";
  const bool lines = text.substr(at).starts_with(three);
  std::size_t i = at + (lines ? 3 : 1);
  for (; i < text.size(); ++i) {
    if (text[i] == '\\' && first == '"') {
      ++i;
    } else if (lines ? text.substr(i).starts_with(three) : text[i] == first || text[i] == '\n') {
      return i + (lines ? 3 : text[i] == first ? 1 : 0);
    }
  }
  return text.size();
}

}  // namespace

Status check_toml_depth(std::string_view text) {
  int parts = 1, depth = 0;
  const auto too = [&](std::size_t at, const char* what) {
    return invalid_argument(fmt::format(
        "{}: {}; no key of a recipe is like that",
        1 + std::count(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(at), '\n'), what));
  };
  for (std::size_t i = 0; i < text.size();) {
    const char c = text[i];
    if (c == '#' || c == '"' || c == '\'') {
      i = skip(text, i);
      continue;
    }
    if (c == '.' && ++parts > kMaxTomlDepth) return too(i, "a key of more than 32 parts");
    if (std::string_view("=,[]{}\n").find(c) != std::string_view::npos) parts = 1;
    if (c == '[' || c == '{') ++depth;
    if ((c == ']' || c == '}') && depth > 0) --depth;
    if (depth > kMaxTomlDepth) return too(i, "more than 32 lists and tables in each other");
    ++i;
  }
  return ok_status();
}

}  // namespace stormo::train
