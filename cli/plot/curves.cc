#include <cli/plot/curves.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <cli/plan/picture.h>

namespace stormo::cli {
namespace {

constexpr std::array kColors = {"#1f5fa8", "#b3261e", "#2e7d32", "#8a5a00", "#6a3fa0",
                                "#00798c", "#c2185b", "#5d4037", "#455a64", "#827717"};
constexpr double kLeft = 70, kTop = 60, kWidth = 820, kHeight = 380, kLegendLine = 20;
constexpr double kRight = kLeft + kWidth;
constexpr double kPlotHeight = kHeight + 64;  // with the labels of its axis

/// Values from 0 to `high` onto pixels, with a tick every `step`.
struct Axis {
  double high = 1, step = 1;
  double from = 0, to = 1;
  double at(double value) const { return from + (to - from) * value / high; }
};

/// 1, 2 or 5 times a power of ten, so that `range` has 5 to 10 ticks.
double step_of(double range) {
  const double rough = range / 6;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  for (const double digit : {1.0, 2.0, 5.0}) {
    if (digit * power >= rough) return digit * power;
  }
  return 10 * power;
}

Axis x_axis(const Plot& plot) {
  Axis axis{.high = 0, .from = kLeft, .to = kRight};
  for (const PlotCurve& c : plot.curves) {
    if (!c.points.empty()) axis.high = std::max(axis.high, c.points.back().x);
  }
  if (axis.high <= 0) axis.high = 1;
  axis.step = step_of(axis.high);
  return axis;
}

Axis y_axis(const Plot& plot, double top) {
  Axis axis{.high = 0, .from = top + kHeight, .to = top};
  double first = 0;
  for (const PlotCurve& c : plot.curves) {
    for (const PlotPoint& p : c.points) axis.high = std::max(axis.high, p.y);
    if (!c.points.empty()) first = std::max(first, c.points.front().y);
  }
  if (first > 0) axis.high = std::min(axis.high, 2 * first);
  if (axis.high <= 0) axis.high = 1;
  axis.step = step_of(axis.high);
  axis.high = std::ceil(axis.high / axis.step) * axis.step;
  return axis;
}

void draw_axes(const Axis& x, const Axis& y, const std::string& x_label, const std::string& y_label,
               std::string& out) {
  const auto end = std::back_inserter(out);
  const double top = y.to, bottom = y.from;
  for (int i = 0; i * x.step <= x.high * (1 + 1e-9); ++i) {
    fmt::format_to(end,
                   "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>"
                   "<text class=\"x\" x=\"{0:.1f}\" y=\"{3}\">{4:.6g}</text>\n",
                   x.at(i * x.step), top, bottom, bottom + 18, i * x.step);
  }
  for (int i = 0; i * y.step <= y.high + y.step / 2; ++i) {
    const double value = i * y.step;
    fmt::format_to(end,
                   "<line class=\"grid\" x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\"/>"
                   "<text class=\"y\" x=\"{3}\" y=\"{4:.1f}\">{5:.6g}</text>\n",
                   kLeft, kRight, y.at(value), kLeft - 8, y.at(value) + 4, value);
  }
  fmt::format_to(end,
                 "<text class=\"x\" x=\"{}\" y=\"{}\">{}</text>\n"
                 "<text class=\"x\" transform=\"translate(18 {}) rotate(-90)\">{}</text>\n",
                 kLeft + kWidth / 2, bottom + 38, xml_escaped(x_label), top + kHeight / 2,
                 xml_escaped(y_label));
}

void draw_curve(const PlotCurve& curve, const char* color, const Axis& x, const Axis& y,
                std::string& out) {
  std::string points;
  for (const PlotPoint& p : curve.points) {
    // no numbers without a bound
    points += fmt::format("{:.1f},{:.1f} ", x.at(p.x), y.at(std::min(p.y, 2 * y.high)));
  }
  fmt::format_to(std::back_inserter(out), "<polyline points=\"{}\" stroke=\"{}\"/>\n", points,
                 color);
}

const char* color_of(std::size_t curve) { return kColors[curve % kColors.size()]; }

void draw_plot(const Plot& plot, std::size_t number, const std::string& y_label, std::string& out) {
  const double top = kTop + kPlotHeight * static_cast<double>(number);
  const Axis x = x_axis(plot), y = y_axis(plot, top);
  draw_axes(x, y, plot.x_label, y_label, out);
  fmt::format_to(std::back_inserter(out),
                 "<clipPath id=\"plot{0}\"><rect x=\"{1}\" y=\"{2}\" width=\"{3}\" "
                 "height=\"{4}\"/></clipPath>\n<g clip-path=\"url(#plot{0})\">\n",
                 number, kLeft, top, kWidth, kHeight);
  for (std::size_t i = 0; i < plot.curves.size(); ++i) {
    draw_curve(plot.curves[i], color_of(i), x, y, out);
  }
  out += "</g>\n";
}

}  // namespace

std::string svg_plots(const PlotText& text, const std::vector<Plot>& plots) {
  const std::size_t curves = plots.empty() ? 0 : plots.front().curves.size();
  const double bottom = kTop + kPlotHeight * static_cast<double>(plots.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>.grid{{stroke:#ddd}} .x{{text-anchor:middle}} .y{{text-anchor:end}} "
      "polyline{{fill:none;stroke-width:2}}</style>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"12\" y=\"22\" font-size=\"15\">{2}</text>\n<text x=\"12\" y=\"42\">{3}</text>\n",
      kRight + 30, bottom + static_cast<double>(curves) * kLegendLine, xml_escaped(text.title),
      xml_escaped(text.subtitle));
  for (std::size_t i = 0; i < plots.size(); ++i) draw_plot(plots[i], i, text.y_label, out);
  for (std::size_t i = 0; i < curves; ++i) {
    const double y = bottom + static_cast<double>(i) * kLegendLine;
    fmt::format_to(std::back_inserter(out),
                   "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"{3}\" "
                   "stroke-width=\"3\"/><text x=\"{4}\" y=\"{5}\">{6}: {7}</text>\n",
                   kLeft, y - 4, kLeft + 24, color_of(i), kLeft + 32, y,
                   xml_escaped(plots.front().curves[i].name), xml_escaped(text.legend[i]));
  }
  return out + "</svg>\n";
}

}  // namespace stormo::cli
