// `stormo plan cost`, `simulate` and `table`.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <nlohmann/json.hpp>
#include <string>
#include <variant>
#include <vector>

#include <cli/plan/load.h>
#include <cli/plan/output.h>
#include <cli/plan/step.h>
#include <stormo/analysis/schedule/cost.h>
#include <stormo/analysis/schedule/simulate.h>
#include <stormo/base/units.h>
#include <stormo/schedule/builders.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using plan::Schedule;
using schedule::Builder;

double microseconds(Duration d) { return std::chrono::duration<double, std::micro>(d).count(); }

}  // namespace

Status plan_cost(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const Plan p, load_plan(o));
  if (const auto* step = std::get_if<StepInput>(&p)) return step_cost(o, *step);
  STORMO_ASSIGN_OR_RETURN(const Schedule s, executable(o, std::get<Schedule>(p)));
  STORMO_ASSIGN_OR_RETURN(const std::int64_t bytes, buffer_bytes(o, s));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, s.ranks));
  const analysis::Cost c = analysis::cost(s, bytes);
  const analysis::InterHostCost between = analysis::inter_host_cost(s, t, bytes);
  if (o.json) {
    print_json(json{{"plan", s.name},
                    {"ranks", s.ranks},
                    {"hosts", t.hosts()},
                    {"bytes", bytes},
                    {"rounds", c.rounds},
                    {"messages", c.messages},
                    {"total_bytes", c.total_bytes},
                    {"max_bytes_sent", c.max_bytes_sent},
                    {"max_bytes_received", c.max_bytes_received},
                    {"max_bytes_reduced", c.max_bytes_reduced},
                    {"busiest_rank", c.busiest},
                    {"inter_host_messages", between.messages},
                    {"inter_host_bytes", between.total_bytes},
                    {"max_host_bytes_sent", between.max_host_bytes_sent},
                    {"max_host_bytes_received", between.max_host_bytes_received}});
    return {};
  }
  fmt::print("{}: {} ranks on {} host(s), {}\n", s.name, s.ranks, t.hosts(), bytes_text(bytes));
  Rows rows{{"rounds", fmt::to_string(c.rounds)},
            {"messages", fmt::to_string(c.messages)},
            {"bytes in all", bytes_text(c.total_bytes)},
            {"most sent by a rank", bytes_text(c.max_bytes_sent)},
            {"most received by a rank", bytes_text(c.max_bytes_received)},
            {"most reduced by a rank", bytes_text(c.max_bytes_reduced)},
            {"busiest rank", fmt::to_string(c.busiest)}};
  if (t.hosts() > 1) {
    rows.push_back({"messages between hosts", fmt::to_string(between.messages)});
    rows.push_back({"bytes between hosts", bytes_text(between.total_bytes)});
    rows.push_back({"most sent by a host", bytes_text(between.max_host_bytes_sent)});
    rows.push_back({"most received by a host", bytes_text(between.max_host_bytes_received)});
  }
  print_table(rows, false);
  return {};
}

Status simulate_plan(const PlanOptions& o) {
  if (is_recipe(o.plan)) {
    STORMO_ASSIGN_OR_RETURN(const bool is_open, simulate_open_recipe(o));
    if (is_open) return {};
  }
  STORMO_ASSIGN_OR_RETURN(const Plan p, load_plan(o));
  if (const auto* step = std::get_if<StepInput>(&p)) return simulate_step(o, *step);
  if (o.svg) return invalid_argument("--svg draws steps; 'stormo plan show --svg' a collective");
  STORMO_ASSIGN_OR_RETURN(const Schedule s, executable(o, std::get<Schedule>(p)));
  STORMO_ASSIGN_OR_RETURN(const std::int64_t bytes, buffer_bytes(o, s));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, s.ranks));
  ManualClock clock;
  const TimePoint begin = clock.now();
  const auto sim = analysis::simulate(
      s, t, bytes, clock, o.json ? analysis::Timeline::kKeep : analysis::Timeline::kDrop);
  if (o.json) {
    for (const auto& x : sim.timeline) {
      print_json(json{{"event", "transfer"},
                      {"round", x.round},
                      {"from", x.transfer.from},
                      {"to", x.transfer.to},
                      {"chunk", x.transfer.chunk},
                      {"bytes", x.bytes},
                      {"start_us", microseconds(x.start - begin)},
                      {"end_us", microseconds(x.end - begin)}});
    }
    std::vector<double> finish;
    for (const Duration d : sim.finish) finish.push_back(microseconds(d));
    print_json(json{{"event", "end"},
                    {"plan", s.name},
                    {"ranks", s.ranks},
                    {"hosts", t.hosts()},
                    {"bytes", bytes},
                    {"duration_us", microseconds(sim.duration)},
                    {"finish_us", finish}});
    return {};
  }
  fmt::print("{}: {} ranks on {} host(s), {}: {}\n", s.name, s.ranks, t.hosts(), bytes_text(bytes),
             format_duration(sim.duration));
  constexpr std::size_t kShown = 16;
  Rows rows{{"rank", "done after"}};
  for (std::size_t r = 0; r < std::min(sim.finish.size(), kShown); ++r) {
    rows.push_back({fmt::to_string(r), format_duration(sim.finish[r])});
  }
  print_table(rows, false);
  if (sim.finish.size() > kShown) fmt::print("... --json has all {} ranks\n", sim.finish.size());
  return {};
}

Status plan_cost_table(const PlanOptions& o) {
  constexpr int kRanks = 8, kHosts = 2;
  constexpr std::int64_t kBytes = 1 << 20;
  Rows rows{{"algorithm", "rounds", "n = 8", "busiest rank sends", "n = 8, K = 1 MiB", "messages",
             "all ranks send"}};
  for (const Builder& b : schedule::builders()) {
    STORMO_ASSIGN_OR_RETURN(const Schedule s, b.build(kRanks, kHosts));
    const analysis::Cost c = analysis::cost(s, kBytes);
    const std::string code = o.markdown ? "`" : "";
    rows.push_back({code + std::string(b.name) + code, std::string(b.formulas.rounds),
                    fmt::to_string(c.rounds), std::string(b.formulas.bytes),
                    bytes_text(c.max_bytes_sent), fmt::to_string(c.messages),
                    bytes_text(c.total_bytes)});
  }
  print_table(rows, o.markdown);
  return {};
}

}  // namespace stormo::cli
