#pragma once

#include <string>

namespace stormo::cli {

/// For text in an SVG: what is no printable ASCII becomes '?'.
std::string xml_escaped(const std::string& text);

/// What an SVG of this size begins with: its style, a white ground, and a title, which may be any
/// text.
std::string svg_begin(double width, double height, const std::string& style,
                      const std::string& title);
inline constexpr const char* kSvgEnd = "</svg>\n";

}  // namespace stormo::cli
