#include <cli/plot/curves.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <cli/plot/svg.h>

namespace stormo::cli {
namespace {

constexpr std::array kColors = {"#1f5fa8", "#b3261e", "#2e7d32", "#8a5a00", "#6a3fa0",
                                "#00798c", "#c2185b", "#5d4037", "#455a64", "#827717"};
constexpr double kLeft = 70, kTop = 60, kWidth = 820, kHeight = 380, kLegendLine = 20;
constexpr double kRight = kLeft + kWidth;
constexpr double kPlotHeight = kHeight + 64;  // with the labels of its axis
constexpr std::size_t kMostSizes = 8;         // that are labels of a logarithmic x axis

/// Values from `low` to `high` onto pixels.
struct Axis {
  double low = 0, high = 1;
  double from = 0, to = 1;
  bool logarithmic = false;
  std::vector<double> ticks = {};

  double at(double value) const {
    const auto place = [this](double v) { return logarithmic ? std::log10(v) : v; };
    return from + (to - from) * (place(value) - place(low)) / (place(high) - place(low));
  }
};

/// Ticks at multiples of `step` from 0 to `high`.
std::vector<double> multiples(double step, double high) {
  std::vector<double> out;
  for (int i = 0; i * step <= high * (1 + 1e-9); ++i) out.push_back(i * step);
  return out;
}

/// 1, 2 or 5 times a power of ten, so that `range` has 5 to 10 ticks.
double step_of(double range) {
  const double rough = range / 6;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= rough) return digit * power;
  }
  return 10 * power;
}

/// Of all curves, the largest and smallest x or y.
std::pair<double, double> ends_of(const Plot& plot, double PlotPoint::*value) {
  double low = 1e300, high = 0;
  for (const PlotCurve& c : plot.curves) {
    for (const PlotPoint& p : c.points) {
      low = std::min(low, p.*value);
      high = std::max(high, p.*value);
    }
  }
  return high > 0 ? std::pair(low, high) : std::pair(0.0, 1.0);
}

/// At the points of the first curve; of many at every second, third, ... one.
Axis logarithmic_x(const Plot& plot) {
  auto [low, high] = ends_of(plot, &PlotPoint::x);
  if (high <= low) high = 2 * low;
  Axis axis{.low = low, .high = high, .from = kLeft, .to = kRight, .logarithmic = true};
  const std::vector<PlotPoint>& points = plot.curves.front().points;
  const std::size_t step = points.size() / kMostSizes + 1;
  for (std::size_t i = 0; i < points.size(); i += step) axis.ticks.push_back(points[i].x);
  return axis;
}

/// At 1, 2 and 5 times powers of ten, between two of these.
Axis logarithmic_y(const Plot& plot, double top) {
  const auto [low, high] = ends_of(plot, &PlotPoint::y);
  const double first = std::floor(std::log10(low) + 1e-9);
  const double last = std::max(std::ceil(std::log10(high) - 1e-9), first + 1);
  Axis axis{.low = std::pow(10, first),
            .high = std::pow(10, last),
            .from = top + kHeight,
            .to = top,
            .logarithmic = true};
  for (double decade = first; decade < last; ++decade) {
    for (const double digit : {1.0, 2.0, 5.0}) axis.ticks.push_back(digit * std::pow(10, decade));
  }
  axis.ticks.push_back(axis.high);
  return axis;
}

Axis linear_x(const Plot& plot) {
  const double high = ends_of(plot, &PlotPoint::x).second;
  return {.high = high, .from = kLeft, .to = kRight, .ticks = multiples(step_of(high), high)};
}

Axis linear_y(const Plot& plot, double top) {
  double first = 0;
  for (const PlotCurve& c : plot.curves) {
    if (!c.points.empty()) first = std::max(first, c.points.front().y);
  }
  double high = ends_of(plot, &PlotPoint::y).second;
  if (first > 0) high = std::min(high, 2 * first);
  const double step = step_of(high);
  high = std::ceil(high / step) * step;
  return {.high = high, .from = top + kHeight, .to = top, .ticks = multiples(step, high)};
}

std::string text_of(const std::function<std::string(double)>& text, double value) {
  return text ? text(value) : fmt::format("{:.6g}", value);
}

void draw_axes(const Plot& plot, const Axis& x, const Axis& y, std::string& out) {
  const auto end = std::back_inserter(out);
  const double top = y.to, bottom = y.from;
  for (const double tick : x.ticks) {
    fmt::format_to(end,
                   "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>"
                   "<text class=\"x\" x=\"{0:.1f}\" y=\"{3}\">{4}</text>\n",
                   x.at(tick), top, bottom, bottom + 18, text_of(plot.x_text, tick));
  }
  for (const double tick : y.ticks) {
    fmt::format_to(end,
                   "<line class=\"grid\" x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\"/>"
                   "<text class=\"y\" x=\"{3}\" y=\"{4:.1f}\">{5}</text>\n",
                   kLeft, kRight, y.at(tick), kLeft - 8, y.at(tick) + 4,
                   text_of(plot.y_text, tick));
  }
  fmt::format_to(end,
                 "<text class=\"x\" x=\"{}\" y=\"{}\">{}</text>\n"
                 "<text class=\"x\" transform=\"translate(18 {}) rotate(-90)\">{}</text>\n",
                 kLeft + kWidth / 2, bottom + 38, xml_escaped(plot.x_label), top + kHeight / 2,
                 xml_escaped(plot.y_label));
}

const char* color_of(std::size_t curve) { return kColors[curve % kColors.size()]; }

void draw_curve(const Plot& plot, std::size_t number, const Axis& x, const Axis& y,
                std::string& out) {
  const PlotCurve& curve = plot.curves[number];
  std::string points, marks;
  for (const PlotPoint& p : curve.points) {
    // no numbers without a bound
    const double px = x.at(p.x), py = y.at(std::min(p.y, 2 * y.high));
    points += fmt::format("{:.1f},{:.1f} ", px, py);
    if (!plot.logarithmic) continue;
    marks += fmt::format(
        "<circle cx=\"{:.1f}\" cy=\"{:.1f}\" r=\"3.5\" fill=\"{}\"><title>{}, {}: {}</title>"
        "</circle>\n",
        px, py, color_of(number), xml_escaped(curve.name), text_of(plot.x_text, p.x),
        text_of(plot.y_text, p.y));
  }
  out += fmt::format("<polyline points=\"{}\" stroke=\"{}\"/>\n", points, color_of(number)) + marks;
}

void draw_plot(const Plot& plot, std::size_t number, std::string& out) {
  const double top = kTop + kPlotHeight * static_cast<double>(number);
  const Axis x = plot.logarithmic ? logarithmic_x(plot) : linear_x(plot);
  const Axis y = plot.logarithmic ? logarithmic_y(plot, top) : linear_y(plot, top);
  draw_axes(plot, x, y, out);
  fmt::format_to(std::back_inserter(out),
                 "<clipPath id=\"plot{0}\"><rect x=\"{1}\" y=\"{2}\" width=\"{3}\" "
                 "height=\"{4}\"/></clipPath>\n<g clip-path=\"url(#plot{0})\">\n",
                 number, kLeft, top, kWidth, kHeight);
  for (std::size_t i = plot.curves.size(); i-- > 0;)
    draw_curve(plot, i, x, y, out);  // first on top
  out += "</g>\n";
}

}  // namespace

std::string svg_plots(const PlotText& text, const std::vector<Plot>& plots) {
  const std::size_t curves = plots.empty() ? 0 : plots.front().curves.size();
  const double bottom = kTop + kPlotHeight * static_cast<double>(plots.size());
  std::string out = svg_begin(kRight + 30, bottom + static_cast<double>(curves) * kLegendLine,
                              ".grid{stroke:#ddd} .x{text-anchor:middle} .y{text-anchor:end} "
                              "polyline{fill:none;stroke-width:2}",
                              text.title);
  out += fmt::format("<text x=\"12\" y=\"42\">{}</text>\n", xml_escaped(text.subtitle));
  for (std::size_t i = 0; i < plots.size(); ++i) draw_plot(plots[i], i, out);
  for (std::size_t i = 0; i < curves; ++i) {
    const double y = bottom + static_cast<double>(i) * kLegendLine;
    std::string line = plots.front().curves[i].name;
    if (i < text.legend.size()) line += ": " + text.legend[i];
    fmt::format_to(std::back_inserter(out),
                   "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"{3}\" "
                   "stroke-width=\"3\"/><text x=\"{4}\" y=\"{5}\">{6}</text>\n",
                   kLeft, y - 4, kLeft + 24, color_of(i), kLeft + 32, y, xml_escaped(line));
  }
  return out + kSvgEnd;
}

}  // namespace stormo::cli
