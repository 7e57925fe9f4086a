#include <cli/bench/chart.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <functional>
#include <iterator>

#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

struct Point {
  double x = 0;
  double y = 0;
};
struct Series {
  std::string name;
  std::vector<Point> points;
};

constexpr std::array kColors = {"#1f5fa8", "#b3261e", "#2e7d32"};
constexpr int kPanelWidth = 420, kPanelHeight = 300, kLeft = 70, kTop = 70, kGap = 90;

/// The series of one panel: Stormo first.
std::vector<Series> series_of(const std::vector<BenchRow>& rows,
                              const std::function<double(const bench::Measurement&)>& value) {
  std::vector<Series> all = {{"Stormo", {}}};
  for (const Versus& v : rows.front().against) all.push_back({v.name, {}});
  for (const BenchRow& row : rows) {
    const auto x = static_cast<double>(row.ours.bytes);
    all[0].points.push_back({x, value(row.ours)});
    for (std::size_t i = 0; i < row.against.size(); ++i)
      all[i + 1].points.push_back({x, value(row.against[i].theirs)});
  }
  for (Series& s : all) {  // what has no logarithm cannot be drawn
    std::erase_if(s.points, [](const Point& p) { return p.x <= 0 || p.y <= 0; });
    std::sort(s.points.begin(), s.points.end(), [](auto& a, auto& b) { return a.x < b.x; });
  }
  return all;
}

/// A logarithmic axis onto pixels.
struct Axis {
  double low = 0, high = 1;  ///< logarithms
  double from = 0, to = 1;   ///< pixels
  double at(double logarithm) const {
    return from + (to - from) * (logarithm - low) / std::max(high - low, 1e-9);
  }
};

struct Panel {
  const char* title;
  int left;
  std::vector<Series> series;
  std::function<std::string(double)> label;  ///< of a value of y

  Axis x() const {
    Axis axis{1e9, -1e9, left + 15.0, left + kPanelWidth - 15.0};
    for (const Series& s : series)
      for (const Point& p : s.points) {
        axis.low = std::min(axis.low, std::log2(p.x));
        axis.high = std::max(axis.high, std::log2(p.x));
      }
    return axis;
  }
  Axis y() const {
    Axis axis{1e9, -1e9, kTop + kPanelHeight + 0.0, kTop + 0.0};
    for (const Series& s : series)
      for (const Point& p : s.points) {
        axis.low = std::min(axis.low, std::floor(std::log10(p.y) + 1e-9));
        axis.high = std::max(axis.high, std::ceil(std::log10(p.y) - 1e-9));
      }
    if (axis.high <= axis.low) axis.high = axis.low + 1;
    return axis;
  }
};

/// Lines and labels of sizes; of many, every second, third, ... one.
void draw_sizes(const Panel& panel, const Axis& axis, std::string& out) {
  const std::vector<Point>& points = panel.series.front().points;
  const std::size_t step = (points.size() + 6) / 7;
  for (std::size_t i = 0; i < points.size(); i += std::max<std::size_t>(step, 1)) {
    const double x = axis.at(std::log2(points[i].x));
    fmt::format_to(std::back_inserter(out),
                   "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>"
                   "<text class=\"x\" x=\"{0:.1f}\" y=\"{3}\">{4}</text>\n",
                   x, kTop, kTop + kPanelHeight, kTop + kPanelHeight + 18,
                   format_bytes(static_cast<std::uint64_t>(points[i].x)));
  }
}

void draw_decades(const Panel& panel, const Axis& axis, std::string& out) {
  const auto end = std::back_inserter(out);
  for (int decade = static_cast<int>(axis.low); decade <= static_cast<int>(axis.high); ++decade) {
    for (const int digit : {1, 2, 5}) {
      const double value = digit * std::pow(10.0, decade);
      if (std::log10(value) > axis.high + 1e-9) break;
      const double y = axis.at(std::log10(value));
      fmt::format_to(end, "<line class=\"{}\" x1=\"{}\" y1=\"{:.1f}\" x2=\"{}\" y2=\"{:.1f}\"/>\n",
                     digit == 1 ? "grid" : "fine", panel.left, y, panel.left + kPanelWidth, y);
      if (digit == 1)
        fmt::format_to(end, "<text class=\"y\" x=\"{}\" y=\"{:.1f}\">{}</text>\n", panel.left - 8,
                       y + 4, panel.label(value));
    }
  }
}

void draw_series(const Series& s, std::size_t index, const Axis& x, const Axis& y,
                 const Panel& panel, std::string& out) {
  const auto end = std::back_inserter(out);
  const char* color = kColors[index % kColors.size()];
  std::string path;
  for (const Point& p : s.points)
    path += fmt::format("{:.1f},{:.1f} ", x.at(std::log2(p.x)), y.at(std::log10(p.y)));
  fmt::format_to(end, "<polyline points=\"{}\" stroke=\"{}\"/>\n", path, color);
  for (const Point& p : s.points) {
    fmt::format_to(end,
                   "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\">"
                   "<title>{}, {}: {}</title></circle>\n",
                   x.at(std::log2(p.x)), y.at(std::log10(p.y)), color, s.name,
                   format_bytes(static_cast<std::uint64_t>(p.x)), panel.label(p.y));
  }
}

void draw_panel(const Panel& panel, std::string& out) {
  const auto end = std::back_inserter(out);
  fmt::format_to(end, "<text class=\"panel\" x=\"{}\" y=\"{}\">{}</text>\n", panel.left, kTop - 12,
                 panel.title);
  const Axis x = panel.x();
  const Axis y = panel.y();
  draw_sizes(panel, x, out);
  draw_decades(panel, y, out);
  for (std::size_t i = panel.series.size(); i-- > 0;)  // Stormo on top
    draw_series(panel.series[i], i, x, y, panel, out);
}

void draw_legend(const std::vector<Series>& series, std::string& out) {
  int x = kLeft;
  const int y = kTop + kPanelHeight + 45;
  for (std::size_t i = 0; i < series.size(); ++i, x += 130) {
    fmt::format_to(std::back_inserter(out),
                   "<circle cx=\"{}\" cy=\"{}\" r=\"5\" fill=\"{}\"/>"
                   "<text x=\"{}\" y=\"{}\">{}</text>\n",
                   x, y - 4, kColors[i % kColors.size()], x + 10, y, series[i].name);
  }
}

std::string escaped(const std::string& text) {
  std::string out;
  for (const char c : text)
    out += c == '&' ? "&amp;" : c == '<' ? "&lt;" : c == '>' ? "&gt;" : std::string(1, c);
  return out;
}

}  // namespace

std::string bench_chart(const std::string& title, const std::vector<BenchRow>& rows) {
  const Panel time{"median time of an operation", kLeft,
                   series_of(rows, [](const bench::Measurement& m) { return m.p50_s; }),
                   [](double s) { return short_time(s); }};
  const Panel bandwidth{"bus bandwidth", kLeft + kPanelWidth + kGap,
                        series_of(rows, [](const bench::Measurement& m) { return m.busbw; }),
                        [](double b) {
                          return b < 0.9995e6   ? fmt::format("{:.3g} KB/s", b / 1e3)
                                 : b < 0.9995e9 ? fmt::format("{:.3g} MB/s", b / 1e6)
                                                : fmt::format("{:.3g} GB/s", b / 1e9);
                        }};
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>.grid{{stroke:#ccc}} .fine{{stroke:#eee}} .x{{text-anchor:middle}} "
      ".y{{text-anchor:end}} .panel{{font-weight:bold}} "
      "polyline{{fill:none;stroke-width:2}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"12\" y=\"26\" font-size=\"16\">{2}</text>\n",
      2 * kLeft + 2 * kPanelWidth + kGap - 30, kTop + kPanelHeight + 65, escaped(title));
  draw_panel(time, out);
  if (std::any_of(bandwidth.series.begin(), bandwidth.series.end(),
                  [](const Series& s) { return !s.points.empty(); }))
    draw_panel(bandwidth, out);
  draw_legend(time.series, out);
  return out + "</svg>\n";
}

}  // namespace stormo::cli
