#include <cli/plan/timeline.h>

#include <fmt/format.h>

#include <algorithm>
#include <iterator>

#include <cli/plan/output.h>
#include <cli/plot/svg.h>
#include <stormo/plan/project.h>

namespace stormo::cli {
namespace {

using analysis::SimulatedAction;
using plan::ActionKind;

constexpr std::size_t kMaxBoxes = 20'000;
constexpr double kLeft = 90, kTop = 64, kWidth = 1200, kLane = 22, kRank = 2 * kLane + 12;
constexpr double kLetter = 7;     // width
constexpr double kVisible = 0.1;  // width of a box that can be seen

constexpr std::uint32_t kWaitColor = 0xffffff;

bool computes(ActionKind kind) {
  return row_of(kind).range == plan::RangeOf::kSegments && !row_of(kind).moves();
}

double y_of(const SimulatedAction& a) {
  return kTop + a.rank * kRank + (a.lane == Lane::kCommunication ? kLane : 0);
}

void draw_axes(std::size_t ranks, double seconds, std::string& out) {
  const auto end = std::back_inserter(out);
  const double bottom = kTop + static_cast<double>(ranks) * kRank;
  for (int tick = 0; tick <= 10; ++tick) {
    const double x = kLeft + kWidth * tick / 10;
    fmt::format_to(end,
                   "<line class=\"tick\" x1=\"{0:.1f}\" y1=\"{1}\" x2=\"{0:.1f}\" y2=\"{2}\"/>", x,
                   kTop - 6, bottom);
    fmt::format_to(end, "<text class=\"tick\" x=\"{:.1f}\" y=\"{}\">{}</text>\n", x, kTop - 10,
                   time_text(seconds * tick / 10));
  }
  for (std::size_t r = 0; r < ranks; ++r) {
    fmt::format_to(end, "<text x=\"12\" y=\"{}\">rank {}</text>\n",
                   kTop + static_cast<double>(r) * kRank + kLane, r);
  }
}

void draw_box(const plan::StepPlan& plan, const SimulatedAction& a, double scale,
              std::string& out) {
  const plan::Action& action = plan.actions[a.action];
  const double x = kLeft + a.start * scale, width = (a.end - a.start) * scale;
  if (width < kVisible) return;
  std::string name = a.lane == Lane::kWait ? "wait" : std::string(plan::to_string(action.kind));
  const bool numbered = a.lane != Lane::kWait && plan.micro_batches > 1 && computes(action.kind);
  const std::string number = std::to_string(action.micro_batch);
  if (numbered) name += " " + number;
  // as in the papers on pipelines, where boxes are narrow
  if (numbered && width <= kLetter * static_cast<double>(name.size())) name = number;
  fmt::format_to(std::back_inserter(out),
                 "<g><title>{}: {} at {}</title><rect class=\"{}\" x=\"{:.2f}\" y=\"{}\" "
                 "width=\"{:.2f}\" height=\"{}\" fill=\"#{:06x}\"/>",
                 xml_escaped(a.lane == Lane::kWait ? "wait" : plan::describe(plan, a.action)),
                 time_text(a.end - a.start), time_text(a.start), to_string(a.lane), x, y_of(a),
                 width, kLane - 2, a.lane == Lane::kWait ? kWaitColor : row_of(action.kind).color);
  if (width > kLetter * static_cast<double>(name.size())) {
    fmt::format_to(std::back_inserter(out), "<text class=\"box\" x=\"{:.2f}\" y=\"{}\">{}</text>",
                   x + width / 2, y_of(a) + kLane - 8, name);
  }
  out += "</g>\n";
}

}  // namespace

Result<std::string> svg_timeline(const plan::StepPlan& plan, const analysis::StepSimulation& s) {
  if (s.timeline.size() > kMaxBoxes) {
    return invalid_argument(fmt::format("{}: {} boxes are no picture; give fewer ranks",
                                        plan.strategy, s.timeline.size()));
  }
  const std::size_t ranks = s.finish.size();
  std::string out = svg_begin(kLeft + kWidth + 40, kTop + static_cast<double>(ranks) * kRank + 16,
                              ".tick{stroke:#ddd;font-size:10px}"
                              "text.tick{stroke:none;fill:#666;text-anchor:middle}"
                              "rect{stroke:#555;stroke-width:0.4}rect.wait{stroke-dasharray:2}"
                              ".box{text-anchor:middle;font-size:10px}",
                              fmt::format("{}: {} rank(s), {} a step, {:.0f} % idle", plan.strategy,
                                          ranks, time_text(s.seconds), 100 * s.idle_share()));
  double seconds = 0;  // of all steps that it shows
  for (const SimulatedAction& a : s.timeline) seconds = std::max(seconds, a.end);
  draw_axes(ranks, seconds, out);
  const double scale = seconds > 0 ? kWidth / seconds : 0;
  for (const SimulatedAction& a : s.timeline) draw_box(plan, a, scale, out);
  return out + kSvgEnd;
}

}  // namespace stormo::cli
