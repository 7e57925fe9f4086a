#include <cli/simulate/report.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include <cli/plan/output.h>
#include <cli/plot/curves.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kCurvePoints = 200;
constexpr int kPictureBins = 120;
constexpr double kAhead = 0.9;   // of the time of another one: clearly earlier
constexpr double kEqual = 1.05;  // times that are the same for all practical purposes

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

double train_loss(const SimulatedPolicy& p) { return p.means.empty() ? 0 : p.means.back().loss; }

std::string score_text(const observe::EvalRecord& score) {
  return score.accuracy ? fmt::format("{:.2f} %", 100 * *score.accuracy)
                        : fmt::format("{:.4f}", score.loss);
}

std::string score_name(const observe::EvalRecord& score) {
  return score.split + (score.accuracy ? " accuracy" : " loss");
}

/// What all policies were scored by, if any was.
std::string score_column(const Simulation& s) {
  for (const SimulatedPolicy& p : s.policies) {
    if (p.score) return score_name(*p.score);
  }
  return {};
}

std::vector<std::string> row_of(const SimulatedPolicy& p, bool scored) {
  std::vector<std::string> row = {
      p.policy,
      format_duration(p.time),
      std::to_string(p.updates),
      std::to_string(p.dropped),
      fmt::format("{:.2f}", p.staleness.mean()),
      std::to_string(p.staleness.max),
      p.diverged ? "-" : fmt::format("{:.1f} %", 100 * p.waited),
      p.diverged ? "diverged at " + format_duration(p.time) : fmt::format("{:.4f}", train_loss(p))};
  if (scored) row.push_back(p.score ? score_text(*p.score) : "-");
  return row;
}

/// "3 (2x), 6-7 (10x)"
std::string stragglers(const std::vector<double>& slowness) {
  std::string text;
  for (std::size_t first = 0, end = 0; first < slowness.size(); first = end) {
    while (end < slowness.size() && slowness[end] == slowness[first]) ++end;
    if (slowness[first] == 1) continue;
    text += fmt::format("{}{}{} ({}x)", text.empty() ? "" : ", ", first,
                        end - first > 1 ? fmt::format("-{}", end - 1) : "", slowness[first]);
  }
  return text;
}

Json histogram_json(const protocol::Staleness& staleness) {
  std::vector<std::uint64_t> counts(staleness.histogram.begin(), staleness.histogram.end());
  while (!counts.empty() && counts.back() == 0) counts.pop_back();
  return counts;
}

}  // namespace

std::string heading(const Simulation& s) {
  const protocol::VirtualCluster& c = s.cluster;
  std::string text = fmt::format("{}: {} workers, {} steps {}, global batch {}; ", s.name,
                                 c.workers, c.pooled ? c.steps * c.workers : c.steps,
                                 c.pooled ? "in a pool" : "each", s.global_batch);
  text += c.times.empty()
              ? fmt::format("a step computes {} +- {:.0f} %, a message takes {}",
                            format_duration(c.compute), 100 * c.jitter, format_duration(c.latency))
              : "steps take as long as in the record";
  const std::string slow = stragglers(c.slowness);
  if (!slow.empty()) text += "; stragglers: " + slow;
  for (const auto& crash : c.crashes) {
    text += fmt::format("; worker {} crashes at {}", crash.worker, format_duration(crash.at));
  }
  if (c.loss > 0) {
    text += fmt::format("; {:.4g} % of messages are lost, and sent again after {}", 100 * c.loss,
                        format_duration(c.timeout));
  }
  for (const auto& crash : c.server_crashes) {
    text += fmt::format("; server {} crashes at {}", crash.server, format_duration(crash.at));
  }
  if (c.backups) text += "; servers have backups";
  return text;
}

std::string final_numbers(const SimulatedPolicy& p) {
  if (p.diverged) return "diverged at " + format_duration(p.time);
  std::string text = fmt::format("{}, train loss {:.4f}", format_duration(p.time), train_loss(p));
  if (p.score) text += fmt::format(", {} {}", score_name(*p.score), score_text(*p.score));
  return text;
}

std::string time_to_equal_loss(const std::vector<SimulatedPolicy>& policies) {
  std::vector<const SimulatedPolicy*> ended;
  for (const SimulatedPolicy& p : policies) {
    if (!p.diverged && p.lost.empty() && !p.means.empty()) ended.push_back(&p);
  }
  if (ended.size() < 2) return {};
  const SimulatedPolicy& worst = **std::ranges::max_element(
      ended, {}, [](const SimulatedPolicy* p) { return train_loss(*p); });
  const double loss = train_loss(worst);
  // every one reaches it: its own last mean is as good
  const auto time = [loss](const SimulatedPolicy* p) { return *first_at_most(p->means, loss); };
  std::ranges::stable_sort(ended, {}, time);
  const Duration first = time(ended.front());
  if (seconds(first) > kAhead * seconds(time(&worst))) return {};
  std::vector<std::string> names, times;
  for (const SimulatedPolicy* p : ended) {
    if (seconds(time(p)) <= kEqual * seconds(first)) names.push_back(p->policy);
    times.push_back(fmt::format("{} after {}", p->policy, format_duration(time(p))));
  }
  return fmt::format("First to a train loss of {:.4f}, the worst final one, {} {}: {}.", loss,
                     names.size() == 1 ? "was" : "were", fmt::join(names, " and "),
                     fmt::join(times, ", "));
}

void print_simulation(const Simulation& s) {
  const std::string column = score_column(s);
  Rows rows = {
      {"policy", "virtual time", "updates", "dropped", "staleness", "max", "waited", "train loss"}};
  if (!column.empty()) rows.front().push_back(column);
  for (const SimulatedPolicy& p : s.policies) rows.push_back(row_of(p, !column.empty()));
  print_line(heading(s) + "\n");
  print_table(rows, false);
  for (const SimulatedPolicy& p : s.policies) {
    if (p.lost.empty()) continue;
    print_line(fmt::format("\n{}: the run ended after {}, when {} was lost.", p.policy,
                           format_duration(p.time), p.lost));
  }
  const std::string comparison = time_to_equal_loss(s.policies);
  if (!comparison.empty()) print_line("\n" + comparison);
}

std::string policy_json(const Simulation& s, const SimulatedPolicy& p) {
  Json out = {{"policy", p.policy},
              {"workers", s.cluster.workers},
              {"virtual_s", seconds(p.time)},
              {"diverged", p.diverged},
              {"updates", p.updates},
              {"dropped", p.dropped},
              {"gradients", p.losses.size()},
              {"steps", p.steps},
              {"staleness",
               {{"mean", p.staleness.mean()},
                {"max", p.staleness.max},
                {"histogram", histogram_json(p.staleness)}}}};
  if (!p.lost.empty()) out["lost"] = p.lost;
  if (!p.diverged) {
    out["weights_hash"] = p.weights_hash;
    out["waited"] = p.waited;
    out["train_loss"] = train_loss(p);
  }
  if (p.score) {
    out[p.score->split] = {{"loss", p.score->loss}};
    if (p.score->accuracy) out[p.score->split]["accuracy"] = *p.score->accuracy;
  }
  out["curve"] = Json::array();
  for (const LossPoint& point : binned(p.losses, kCurvePoints)) {
    out["curve"].push_back({seconds(point.at), point.loss});
  }
  out["wall_s"] = p.wall_s;
  return out.dump();
}

std::string svg_losses(const Simulation& s) {
  const std::string title = heading(s);
  const std::size_t half = std::min(title.find("; "), title.size());
  PlotText text{.title = title.substr(0, half),
                .subtitle = title.substr(std::min(half + 2, title.size()))};
  Plot plot{.x_label = "virtual time (s)", .y_label = "train loss"};
  for (const SimulatedPolicy& p : s.policies) {
    PlotCurve& curve = plot.curves.emplace_back(PlotCurve{.name = p.policy});
    for (const LossPoint& point : binned(p.losses, kPictureBins)) {
      curve.points.push_back({.x = seconds(point.at), .y = point.loss});
    }
    text.legend.push_back(final_numbers(p));
  }
  return svg_plots(text, {plot});
}

}  // namespace stormo::cli
