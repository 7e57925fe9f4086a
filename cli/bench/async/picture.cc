#include <cli/bench/async/table.h>

#include <fmt/format.h>

#include <chrono>

#include <cli/plot/curves.h>

namespace stormo::cli {
namespace {

constexpr int kBins = 120;

void add_curves(const AsyncResult& result, Plot& over_steps, Plot& over_time, PlotText& text) {
  PlotCurve steps{.name = result.name}, time{.name = result.name};
  double done = 0;
  for (const LossPoint& p : binned(result.summary.losses, kBins)) {
    done += p.samples;
    steps.points.push_back({.x = done, .y = p.loss});
    time.points.push_back({.x = std::chrono::duration<double>(p.at).count(), .y = p.loss});
  }
  over_steps.curves.push_back(std::move(steps));
  over_time.curves.push_back(std::move(time));
  const AsyncSummary& s = result.summary;
  text.legend.push_back(fmt::format("{:.4g} steps/s, {}", s.rate(),
                                    s.losses.empty()
                                        ? "losses of steps are not known"
                                        : fmt::format("last loss {:.4g}", s.last_loss)));
}

}  // namespace

std::string async_picture(const AsyncRow& row) {
  PlotText text{.title = async_heading(row),
                .subtitle = "losses of the first round, since all workers train"};
  if (row.slow.any()) text.subtitle += "; slow on purpose: " + slow_text(row.slow);
  Plot over_steps{.x_label = "steps of all workers", .y_label = "train loss"};
  Plot over_time{.x_label = "time (s)", .y_label = "train loss"};
  add_curves(row.ours, over_steps, over_time, text);
  for (const AsyncResult& other : row.against) add_curves(other, over_steps, over_time, text);
  return svg_plots(text, {over_steps, over_time});
}

}  // namespace stormo::cli
