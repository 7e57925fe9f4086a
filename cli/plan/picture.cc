#include <cli/plan/picture.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <vector>

#include <cli/plan/rounds.h>
#include <cli/plot/svg.h>

namespace stormo::cli {
namespace {

using plan::ReceiveOp;
using plan::Schedule;

constexpr std::size_t kMaxArrows = 4096;
constexpr const char* kReduceColor = "#b3261e";
constexpr const char* kCopyColor = "#1f5fa8";

using ArrowsByRound = std::vector<std::vector<Arrow>>;

Result<ArrowsByRound> drawable(const Schedule& s) {
  ArrowsByRound out;
  std::size_t count = 0;
  for (const plan::Round& round : s.rounds) {
    count += out.emplace_back(arrows_of(round)).size();
    if (count > kMaxArrows) {
      return invalid_argument(
          fmt::format("{}: more than {} arrows are no picture; give fewer ranks or pieces", s.name,
                      kMaxArrows));
    }
  }
  return out;
}

const char* color_of(const Arrow& arrow) {
  return arrow.how == ReceiveOp::kReduce ? kReduceColor : kCopyColor;
}

std::string heading(const Schedule& s) {
  return fmt::format("{}: {} among {} ranks, {} chunks, {} rounds", s.name, to_string(s.goal.kind),
                     s.ranks, s.chunks, s.rounds.size());
}

/// Names come from files: quotes and control characters must not end a string.
std::string dot_quoted(const std::string& text) {
  std::string out = "\"";
  for (const char c : text) {
    if (c == '"' || c == '\\') out += '\\';
    out += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  }
  return out + '"';
}

/// Where things stand in the SVG.
struct Layout {
  static constexpr int kLeft = 80, kTop = 80, kColumn = 90, kRow = 90, kMargin = 50;
  static int x(Rank r) { return kLeft + kMargin + r * kColumn; }
  static int y(std::size_t round) { return kTop + static_cast<int>(round) * kRow; }
};

void draw_grid(const Schedule& s, std::string& out) {
  const auto end = std::back_inserter(out);
  const int bottom = Layout::y(s.rounds.size());
  for (Rank r = 0; r < s.ranks; ++r) {
    fmt::format_to(end, "<text class=\"head\" x=\"{}\" y=\"{}\">rank {}</text>\n", Layout::x(r),
                   Layout::kTop - 12, r);
    fmt::format_to(end, "<line class=\"rank\" x1=\"{0}\" y1=\"{1}\" x2=\"{0}\" y2=\"{2}\"/>\n",
                   Layout::x(r), Layout::kTop, bottom);
  }
  for (std::size_t i = 0; i < s.rounds.size(); ++i) {
    fmt::format_to(end, "<text class=\"round\" x=\"12\" y=\"{}\">round {}</text>\n",
                   Layout::y(i) + Layout::kRow / 2, i);
    fmt::format_to(end, "<line class=\"round\" x1=\"12\" y1=\"{0}\" x2=\"{1}\" y2=\"{0}\"/>\n",
                   Layout::y(i), Layout::x(s.ranks - 1) + Layout::kMargin);
  }
}

void draw_arrow(const Arrow& arrow, std::size_t round, std::string& out) {
  const int x1 = Layout::x(arrow.from), y1 = Layout::y(round) + 6;
  const int x2 = Layout::x(arrow.to), y2 = Layout::y(round + 1) - 6;
  const bool reduces = arrow.how == ReceiveOp::kReduce;
  const std::string label = label_of(arrow);
  // labels stand near the sender, where arrows of different length have not met yet
  fmt::format_to(std::back_inserter(out),
                 "<g class=\"{}\"><title>rank {} to rank {}: {}</title>"
                 "<line x1=\"{}\" y1=\"{}\" x2=\"{}\" y2=\"{}\" marker-end=\"url(#{})\"/>"
                 "<text x=\"{}\" y=\"{}\">{}</text></g>\n",
                 reduces ? "reduce" : "copy", arrow.from, arrow.to, label, x1, y1, x2, y2,
                 reduces ? "r" : "c", x1 + (x2 - x1) * 3 / 10, y1 + (y2 - y1) * 3 / 10 + 4, label);
}

std::string svg_head(const Schedule& s, int width, int height) {
  const auto marker = [](const char* id, const char* color) {
    return fmt::format(
        "<marker id=\"{}\" viewBox=\"0 0 8 8\" refX=\"7\" refY=\"4\" markerWidth=\"7\" "
        "markerHeight=\"7\" orient=\"auto\"><path d=\"M0 0L8 4L0 8z\" fill=\"{}\"/></marker>",
        id, color);
  };
  const std::string style = fmt::format(
      ".rank{{stroke:#999}} line.round{{stroke:#ddd}} .head{{text-anchor:middle}} text{{font-size:"
      "11px}}\n.reduce line{{stroke:{0}}} .reduce text{{fill:{0}}}\n"
      ".copy line{{stroke:{1};stroke-dasharray:5 3}} .copy text{{fill:{1}}}\n"
      "g text{{text-anchor:middle;paint-order:stroke;stroke:#fff;stroke-width:3px}}",
      kReduceColor, kCopyColor);
  return svg_begin(width, height, style, heading(s)) +
         fmt::format(
             "<defs>{0}{1}</defs>\n<text x=\"12\" y=\"42\"><tspan fill=\"{2}\">+c solid: the "
             "receiver reduces</tspan><tspan fill=\"{3}\" dx=\"16\">=c dashed: the receiver "
             "copies</tspan></text>\n",
             marker("r", kReduceColor), marker("c", kCopyColor), kReduceColor, kCopyColor);
}

}  // namespace

Result<std::string> dot_picture(const Schedule& s) {
  STORMO_ASSIGN_OR_RETURN(const ArrowsByRound rounds, drawable(s));
  std::string out =
      fmt::format("digraph {} {{\n  label={}; labelloc=t; nodesep=0.6; ranksep=0.7;\n",
                  dot_quoted(s.name), dot_quoted(heading(s)));
  out += "  node [shape=point, width=0.06]; edge [fontsize=10, arrowsize=0.6];\n";
  const auto end = std::back_inserter(out);
  for (std::size_t i = 0; i <= rounds.size(); ++i) {
    out += "  { rank=same;";
    for (Rank r = 0; r < s.ranks; ++r) {
      fmt::format_to(end, " t{}_{}{};", i, r,
                     i == 0 ? fmt::format(" [shape=circle, label=\"{}\", width=0.3]", r) : "");
    }
    out += " }\n  edge [style=invis];";
    for (Rank r = 0; r + 1 < s.ranks; ++r)
      fmt::format_to(end, " t{0}_{1} -> t{0}_{2};", i, r, r + 1);
    out += '\n';
  }
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    out += "  edge [style=solid, color=\"#cccccc\", fontcolor=black, arrowhead=none, label=\"\"];";
    for (Rank r = 0; r < s.ranks; ++r) fmt::format_to(end, " t{0}_{1} -> t{2}_{1};", i, r, i + 1);
    out += '\n';
    for (const Arrow& arrow : rounds[i]) {
      fmt::format_to(end,
                     "  t{}_{} -> t{}_{} [label=\"{}\", color=\"{}\", fontcolor=\"{}\", style={}, "
                     "arrowhead=normal, constraint=false];\n",
                     i, arrow.from, i + 1, arrow.to, label_of(arrow), color_of(arrow),
                     color_of(arrow), arrow.how == ReceiveOp::kReduce ? "solid" : "dashed");
    }
  }
  return out + "}\n";
}

Result<std::string> svg_picture(const Schedule& s) {
  STORMO_ASSIGN_OR_RETURN(const ArrowsByRound rounds, drawable(s));
  const int width = Layout::x(s.ranks - 1) + Layout::kMargin + 20;
  std::string out = svg_head(s, std::max(width, 480), Layout::y(rounds.size()) + 20);
  draw_grid(s, out);
  for (std::size_t i = 0; i < rounds.size(); ++i) {
    for (const Arrow& arrow : rounds[i]) draw_arrow(arrow, i, out);
  }
  return out + kSvgEnd;
}

}  // namespace stormo::cli
