#pragma once

#include <string_view>

namespace stormo {

/// Deeper texts of files are refused: what walks through a document, or prints it, recurses.
inline constexpr int kMaxJsonDepth = 32;

/// Whether objects and lists of the JSON `text` lie in at most `levels` others, itself counted.
/// Whether it is valid JSON otherwise is not looked at. Linear.
bool json_nests_within(std::string_view text, int levels = kMaxJsonDepth);

}  // namespace stormo
