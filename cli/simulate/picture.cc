#include <cli/simulate/picture.h>

#include <algorithm>

#include <cli/plot/curves.h>

namespace stormo::cli {
namespace {

constexpr int kBins = 120;

std::vector<PlotPoint> points_of(const std::vector<LossPoint>& losses) {
  std::vector<PlotPoint> out;
  for (const LossPoint& p : binned(losses, kBins)) {
    out.push_back({.x = std::chrono::duration<double>(p.at).count(), .y = p.loss});
  }
  return out;
}

}  // namespace

std::string svg_losses(const Simulation& s) {
  const std::string title = heading(s);
  const std::size_t half = std::min(title.find("; "), title.size());
  PlotText text{.title = title.substr(0, half),
                .subtitle = title.substr(std::min(half + 2, title.size())),
                .y_label = "train loss"};
  Plot plot{.x_label = "virtual time (s)"};
  for (const SimulatedPolicy& p : s.policies) {
    plot.curves.push_back({.name = p.policy, .points = points_of(p.losses)});
    text.legend.push_back(final_numbers(p));
  }
  return svg_plots(text, {plot});
}

}  // namespace stormo::cli
