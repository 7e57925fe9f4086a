#include <cli/plot/svg.h>

#include <fmt/format.h>

namespace stormo::cli {

std::string xml_escaped(const std::string& text) {
  std::string out;
  for (const char c : text) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '&' || c == '<' || c == '>') {
      out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : "&gt;";
    } else {
      out += byte < 0x20 || byte >= 0x7f ? '?' : c;
    }
  }
  return out;
}

std::string svg_begin(double width, double height, const std::string& style,
                      const std::string& title) {
  return fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n<style>{2}</style>\n"
      "<rect width=\"100%\" height=\"100%\" style=\"fill:#fff;stroke:none\"/>\n"
      "<text x=\"12\" y=\"22\" font-size=\"15\">{3}</text>\n",
      width, height, style, xml_escaped(title));
}

}  // namespace stormo::cli
