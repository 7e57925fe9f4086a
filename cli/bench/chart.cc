#include <cli/bench/chart.h>

#include <fmt/format.h>

#include <algorithm>

#include <cli/plot/curves.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

/// A plot of one figure over sizes: Stormo first. What is 0 has no place on its axes.
Plot plot_of(const std::vector<BenchRow>& rows, const std::string& label,
             double bench::Measurement::*figure, std::string (*text)(double)) {
  Plot plot{.x_label = "bytes",
            .y_label = label,
            .curves = {{.name = "Stormo"}},
            .logarithmic = true,
            .x_text = [](double bytes) { return format_bytes(static_cast<std::uint64_t>(bytes)); },
            .y_text = text};
  for (const Versus& v : rows.front().against) plot.curves.push_back({.name = v.name});
  const auto add = [&](PlotCurve& curve, const bench::Measurement& m) {
    const PlotPoint point{.x = static_cast<double>(m.bytes), .y = m.*figure};
    if (point.x > 0 && point.y > 0) curve.points.push_back(point);
  };
  for (const BenchRow& row : rows) {
    add(plot.curves[0], row.ours);
    for (std::size_t i = 0; i < row.against.size(); ++i)
      add(plot.curves[i + 1], row.against[i].theirs);
  }
  for (PlotCurve& c : plot.curves) std::ranges::sort(c.points, {}, &PlotPoint::x);
  return plot;
}

std::string rate_text(double b) {
  return b < 0.9995e6   ? fmt::format("{:.3g} KB/s", b / 1e3)
         : b < 0.9995e9 ? fmt::format("{:.3g} MB/s", b / 1e6)
                        : fmt::format("{:.3g} GB/s", b / 1e9);
}

}  // namespace

std::string bench_chart(const std::string& title, const std::vector<BenchRow>& rows) {
  std::vector<Plot> plots = {
      plot_of(rows, "median time of an operation", &bench::Measurement::p50_s, short_time),
      plot_of(rows, "bus bandwidth", &bench::Measurement::busbw, rate_text)};
  std::erase_if(plots, [](const Plot& plot) { return plot.curves.front().points.empty(); });
  return svg_plots({.title = title}, plots);
}

}  // namespace stormo::cli
