#include <cli/simulate/picture.h>

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <iterator>

#include <cli/plan/picture.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

constexpr std::array kColors = {"#1f5fa8", "#b3261e", "#2e7d32", "#8a5a00", "#6a3fa0"};
constexpr int kBins = 120;
constexpr double kLeft = 70, kTop = 60, kWidth = 820, kHeight = 380, kLegendLine = 20;
constexpr double kBottom = kTop + kHeight, kRight = kLeft + kWidth;

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

using Curve = std::vector<LossPoint>;

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

Axis time_axis(const std::vector<Curve>& curves) {
  Axis axis{.high = 0, .from = kLeft, .to = kRight};
  for (const Curve& c : curves) {
    if (!c.empty()) axis.high = std::max(axis.high, seconds(c.back().at));
  }
  if (axis.high <= 0) axis.high = 1;
  axis.step = step_of(axis.high);
  return axis;
}

/// From 0 to at most twice the first loss: what is above is cut off, since it would hide the rest.
Axis loss_axis(const Simulation& s, const std::vector<Curve>& curves) {
  Axis axis{.high = 0, .from = kBottom, .to = kTop};
  for (const Curve& c : curves) {
    for (const LossPoint& p : c) axis.high = std::max(axis.high, p.loss);
  }
  double first = 0;
  for (const SimulatedPolicy& p : s.policies) {
    if (!p.losses.empty()) first = std::max(first, p.losses.front().loss);
  }
  if (first > 0) axis.high = std::min(axis.high, 2 * first);
  if (axis.high <= 0) axis.high = 1;
  axis.step = step_of(axis.high);
  axis.high = std::ceil(axis.high / axis.step) * axis.step;
  return axis;
}

void draw_axes(const Axis& x, const Axis& y, std::string& out) {
  const auto end = std::back_inserter(out);
  for (int i = 0; i * x.step <= x.high * (1 + 1e-9); ++i) {
    const double at = x.at(i * x.step);
    fmt::format_to(end,
                   "<line class=\"grid\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>"
                   "<text class=\"x\" x=\"{0:.1f}\" y=\"{3}\">{4:.6g}</text>\n",
                   at, kTop, kBottom, kBottom + 18, i * x.step);
  }
  for (int i = 0; i * y.step <= y.high + y.step / 2; ++i) {
    const double value = i * y.step;
    fmt::format_to(end,
                   "<line class=\"grid\" x1=\"{0}\" y1=\"{2:.1f}\" x2=\"{1}\" y2=\"{2:.1f}\"/>"
                   "<text class=\"y\" x=\"{3}\" y=\"{4:.1f}\">{5:.6g}</text>\n",
                   kLeft, kRight, y.at(value), kLeft - 8, y.at(value) + 4, value);
  }
  fmt::format_to(end,
                 "<text class=\"x\" x=\"{}\" y=\"{}\">virtual time (s)</text>\n"
                 "<text class=\"x\" transform=\"translate(18 {}) rotate(-90)\">train loss</text>\n",
                 kLeft + kWidth / 2, kBottom + 38, kTop + kHeight / 2);
}

void draw_curve(const Curve& curve, const char* color, const Axis& x, const Axis& y,
                std::string& out) {
  std::string points;
  for (const LossPoint& p : curve) {
    points += fmt::format("{:.1f},{:.1f} ", x.at(seconds(p.at)),
                          y.at(std::min(p.loss, 2 * y.high)));  // no numbers without a bound
  }
  fmt::format_to(std::back_inserter(out), "<polyline points=\"{}\" stroke=\"{}\"/>\n", points,
                 color);
}

void draw_legend(const Simulation& s, std::string& out) {
  for (std::size_t i = 0; i < s.policies.size(); ++i) {
    const double y = kBottom + 64 + static_cast<double>(i) * kLegendLine;
    fmt::format_to(std::back_inserter(out),
                   "<line x1=\"{0}\" y1=\"{1}\" x2=\"{2}\" y2=\"{1}\" stroke=\"{3}\" "
                   "stroke-width=\"3\"/><text x=\"{4}\" y=\"{5}\">{6}: {7}</text>\n",
                   kLeft, y - 4, kLeft + 24, kColors[i % kColors.size()], kLeft + 32, y,
                   s.policies[i].policy, xml_escaped(final_numbers(s.policies[i])));
  }
}

}  // namespace

std::string svg_losses(const Simulation& s) {
  std::vector<Curve> curves;
  for (const SimulatedPolicy& p : s.policies) curves.push_back(binned(p.losses, kBins));
  const Axis x = time_axis(curves), y = loss_axis(s, curves);
  const std::string title = heading(s);
  const std::size_t half = std::min(title.find("; "), title.size());
  std::string out = fmt::format(
      "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" "
      "viewBox=\"0 0 {0} {1}\" font-family=\"sans-serif\" font-size=\"12\">\n"
      "<style>.grid{{stroke:#ddd}} .x{{text-anchor:middle}} .y{{text-anchor:end}} "
      "polyline{{fill:none;stroke-width:2}}</style>\n"
      "<defs><clipPath id=\"plot\"><rect x=\"{2}\" y=\"{3}\" width=\"{4}\" "
      "height=\"{5}\"/></clipPath></defs>\n"
      "<rect width=\"100%\" height=\"100%\" fill=\"#fff\"/>\n"
      "<text x=\"12\" y=\"22\" font-size=\"15\">{6}</text>\n<text x=\"12\" y=\"42\">{7}</text>\n",
      kRight + 30, kBottom + 64 + static_cast<double>(s.policies.size()) * kLegendLine, kLeft, kTop,
      kWidth, kHeight, xml_escaped(title.substr(0, half)),
      xml_escaped(title.substr(std::min(half + 2, title.size()))));
  draw_axes(x, y, out);
  out += "<g clip-path=\"url(#plot)\">\n";
  for (std::size_t i = 0; i < curves.size(); ++i) {
    draw_curve(curves[i], kColors[i % kColors.size()], x, y, out);
  }
  out += "</g>\n";
  draw_legend(s, out);
  return out + "</svg>\n";
}

}  // namespace stormo::cli
