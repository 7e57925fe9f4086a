// `stormo plan cost` and `simulate` of a training step.
#include <cli/plan/step.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cli/plan/load.h>
#include <cli/plan/lost.h>
#include <cli/plan/mixing.h>
#include <cli/plan/output.h>
#include <cli/plan/timeline.h>
#include <cli/plan/trace_times.h>
#include <stormo/analysis/step/step_cost.h>
#include <stormo/analysis/transfer/crossings.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/plan/project.h>

namespace stormo::cli {
namespace {

using analysis::Memory;
using nlohmann::json;

constexpr std::size_t kShownRanks = 16;

double gflops_of(const PlanOptions& o) {
  return o.gflops > 0 ? o.gflops : comm::StepModel::kGflops;
}

struct Estimate {
  comm::StepModel model;
  analysis::StepCost cost;
  analysis::StepMemory memory;
};

Result<Estimate> estimate(const PlanOptions& o, const StepInput& step) {
  STORMO_RETURN_IF_ERROR(analysis::verify(step.plan).within(o.plan));
  STORMO_ASSIGN_OR_RETURN(comm::StepModel model, step_model(o, step.plan.mesh.size()));
  Estimate out{
      .model = std::move(model), .cost = {}, .memory = analysis::memory(step.plan, step.memory)};
  STORMO_ASSIGN_OR_RETURN(out.cost, out.model.cost(step));
  return out;
}

json to_json(const Memory& m) {
  return {{"parameters", m.parameters},
          {"gradients", m.gradients},
          {"optimizer_state", m.optimizer_state},
          {"activations", m.activations},
          {"process", m.process},
          {"total", m.total()}};
}

/// What one rank sends to another of the places or states that the other one reads, and of their
/// gradients.
struct Sent {
  std::int64_t values = 0, gradients = 0;  // bytes in a step
};
using Crossings = std::map<std::pair<Rank, Rank>, Sent>;

Crossings crossings_of(const StepInput& step) {
  Crossings out;
  for (const plan::Action& a : step.plan.actions) {
    const bool back = row_of(a.kind).passes_gradient();
    for (const analysis::Crossing& e : analysis::crossings_of(step.plan, a, step.sizes)) {
      for (const analysis::Crossing::Message& m : e.messages) {
        Sent& c = out[{m.from, m.to}];
        (back ? c.gradients : c.values) += m.bytes;
      }
    }
  }
  return out;
}

json mixing_json(const plan::StepPlan& p) {
  json out = json::array();
  for (const MixingFacts& f : mixing_facts(p)) {
    out.push_back({{"topology", f.topology},
                   {"ranks", f.ranks},
                   {"receivers", f.receivers},
                   {"rounds", f.rounds}});
    if (f.second_eigenvalue) out.back()["second_eigenvalue"] = *f.second_eigenvalue;
  }
  return out;
}

json cost_json(const StepInput& step, const Estimate& e) {
  json axes = json::array();
  for (const analysis::AxesCost& a : e.cost.axes) {
    axes.push_back({{"axes", a.axes},
                    {"collectives", a.collectives},
                    {"payload", a.payload},
                    {"between_hosts", a.sent.between_hosts},
                    {"in_hosts", a.sent.in_host}});
  }
  std::vector<std::int64_t> between_hosts, in_host;
  for (const analysis::Traffic& t : e.cost.ranks) {
    between_hosts.push_back(t.between_hosts);
    in_host.push_back(t.in_host);
  }
  std::vector<double> mean_between_hosts, mean_in_host;
  for (const analysis::MeanTraffic& t : e.cost.mean) {
    mean_between_hosts.push_back(t.between_hosts);
    mean_in_host.push_back(t.in_host);
  }
  json crossings = json::array();
  for (const auto& [ends, c] : crossings_of(step)) {
    crossings.push_back({{"from", ends.first},
                         {"to", ends.second},
                         {"values", c.values},
                         {"gradients", c.gradients}});
  }
  return json{{"plan", step.plan.strategy},
              {"crossings", crossings},
              {"mixing", mixing_json(step.plan)},
              {"ranks", step.plan.mesh.size()},
              {"ranks_per_host", step.ranks_per_host},
              {"axes", axes},
              {"pulled_per_rank", e.cost.pulled},
              {"pushed_per_rank", e.cost.pushed},
              {"between_hosts_per_rank", between_hosts},
              {"in_host_per_rank", in_host},
              {"mean_between_hosts_per_rank", mean_between_hosts},
              {"mean_in_host_per_rank", mean_in_host},
              {"memory_between_steps", to_json(e.memory.between_steps)},
              {"memory_peak", to_json(e.memory.peak)},
              {"memory_peak_action", plan::describe(step.plan, e.memory.peak_action)},
              {"memory_peak_stage", e.memory.stage},
              {"activations_known", !step.memory.activations.empty()}};
}

void print_traffic(const Estimate& e) {
  Rows rows{{"over", "collectives", "payload", "sent to other hosts", "moved inside hosts"}};
  for (const analysis::AxesCost& a : e.cost.axes) {
    rows.push_back({fmt::format("{}", fmt::join(a.axes, ",")), fmt::to_string(a.collectives),
                    bytes_text(a.payload), bytes_text(a.sent.between_hosts),
                    bytes_text(a.sent.in_host)});
  }
  const bool servers = e.cost.pulled > 0 || e.cost.pushed > 0;
  if (rows.size() > 1) {
    print_table(rows, false);
  } else if (!servers) {
    print_line("No rank sends anything.");
  }
  if (servers) {
    print_line(fmt::format("Each worker pulls {} from the servers and pushes {} to them.",
                           bytes_text(e.cost.pulled), bytes_text(e.cost.pushed)));
  }
}

/// Only where not all steps send alike.
void print_mean(const StepInput& step, const Estimate& e) {
  if (std::ranges::all_of(step.plan.actions, [](const plan::Action& a) { return a.every == 1; })) {
    return;
  }
  analysis::MeanTraffic sum;
  for (const analysis::MeanTraffic& t : e.cost.mean) {
    sum.between_hosts += t.between_hosts;
    sum.in_host += t.in_host;
  }
  if (sum == analysis::MeanTraffic{}) return;
  print_line(fmt::format("A step on average sends {} to other hosts, and moves {} inside hosts.",
                         bytes_text(std::llround(sum.between_hosts)),
                         bytes_text(std::llround(sum.in_host))));
}

/// Only where ranks have parts of maps, or of a graph.
void print_crossings(const StepInput& step) {
  const Crossings all = crossings_of(step);
  if (all.empty()) return;
  Rows rows{{"from rank", "to rank", "what it reads", "their gradients, back"}};
  for (const auto& [ends, c] : all) {
    if (rows.size() > kShownRanks) break;
    // the gradients of what is sent this way come back the other way
    const auto back = all.find({ends.second, ends.first});
    rows.push_back({fmt::to_string(ends.first), fmt::to_string(ends.second), bytes_text(c.values),
                    bytes_text(back == all.end() ? 0 : back->second.gradients)});
  }
  print_table(rows, false);
  if (all.size() > kShownRanks) fmt::print("... --json has all {} pairs\n", all.size());
}

void print_memory(const StepInput& step, const Estimate& e) {
  const Memory &rest = e.memory.between_steps, &peak = e.memory.peak;
  const bool known = !step.memory.activations.empty();
  const std::string process = peak.process > 0 ? bytes_text(peak.process) : "unknown";
  print_table(
      {{"memory of a rank", "between steps", "at the peak"},
       {"parameters", bytes_text(rest.parameters), bytes_text(peak.parameters)},
       {"gradients", bytes_text(rest.gradients), bytes_text(peak.gradients)},
       {"optimizer state", bytes_text(rest.optimizer_state), bytes_text(peak.optimizer_state)},
       {"activations", "0 B", known ? bytes_text(peak.activations) : "unknown"},
       {"program and data", process, process},
       {"in all", bytes_text(rest.total()), bytes_text(peak.total())}},
      false);
  const bool staged = plan::num_stages(step.plan.mesh) > 1;
  fmt::print("the peak is in {}{}{}\n", plan::describe(step.plan, e.memory.peak_action),
             staged ? fmt::format(", on stage {}", e.memory.stage) : "",
             known ? "" : "; --measured takes a look at activations, program and data");
}

/// Means over the steps of a trace.
struct Traced {
  TracedStep mean;
  std::size_t steps = 0;
  double seconds = 0, idle_share = 0;  ///< of steps that are simulated, each with its own times
};

Result<Traced> traced(const StepInput& step, Estimate& e, const std::string& path) {
  STORMO_ASSIGN_OR_RETURN(const std::vector<TracedStep> steps, traced_steps(path, step.plan));
  Traced out{.mean = mean_of(steps), .steps = steps.size()};
  double idle = 0;  // seconds
  for (const TracedStep& t : steps) {
    STORMO_ASSIGN_OR_RETURN(
        const analysis::StepSimulation s,
        e.model.simulate(step, compute_times(step.plan, t), analysis::Timeline::kDrop));
    out.seconds += s.seconds;
    idle += s.seconds * s.idle_share();
  }
  out.idle_share = idle / out.seconds;
  out.seconds /= static_cast<double>(steps.size());
  return out;
}

void print_simulation_json(const StepInput& step, const analysis::StepSimulation& s,
                           const std::optional<Traced>& t) {
  for (const analysis::SimulatedAction& a : s.timeline) {
    print_json(json{{"event", "action"},
                    {"rank", a.rank},
                    {"action", a.action},
                    {"name", plan::to_string(step.plan.actions[a.action].kind)},
                    {"lane", to_string(a.lane)},
                    {"start_s", a.start},
                    {"end_s", a.end}});
  }
  json end{{"event", "end"},
           {"plan", step.plan.strategy},
           {"ranks", step.plan.mesh.size()},
           {"hosts", step.ranks_per_host.size()},
           {"measured", step.measured.has_value()},
           {"seconds", s.seconds},
           {"idle_share", s.idle_share()},
           {"finish_s", s.finish}};
  if (t) {
    end["traced"] = {{"steps", t->steps},
                     {"each_step_seconds", t->seconds},
                     {"each_step_idle_share", t->idle_share},
                     {"seconds", t->mean.seconds},
                     {"idle_share", t->mean.idle_share()}};
  }
  print_json(end);
}

/// What each of them adds is idle time of another cause.
void print_traced(const analysis::StepSimulation& s, const Traced& t) {
  const auto share = [](double idle) { return fmt::format("{:.1f} %", 100 * idle); };
  print_table({{"", "step", "compute nothing"},
               {"simulated with mean times", time_text(s.seconds), share(s.idle_share())},
               {"with the times of each step", time_text(t.seconds), share(t.idle_share)},
               {"in the trace", time_text(t.mean.seconds), share(t.mean.idle_share())}},
              false);
}

}  // namespace

std::string heading(const StepInput& step) {
  return fmt::format("{}: {} rank(s) on {} host(s), {} micro-batch(es) of {} sample(s) on each",
                     step.plan.strategy, step.plan.mesh.size(), step.ranks_per_host.size(),
                     step.plan.micro_batches, step.samples);
}

std::string origin_of_times(const PlanOptions& o, const StepInput& step) {
  if (step.measured) return "computations as measured here";
  return fmt::format("computations at {} GFLOP/s a rank", gflops_of(o));
}

Status check_fits(const StepInput& step, int ranks_here, std::uint64_t available_bytes) {
  const Memory peak = analysis::memory(step.plan, step.memory).peak;
  const std::uint64_t needed =
      static_cast<std::uint64_t>(peak.total()) * static_cast<std::uint64_t>(ranks_here);
  if (needed <= available_bytes) return {};
  return Status(
      Code::kExhausted,
      fmt::format(
          "{} rank(s) on this host need at least {}, of which {} are available: each {} for "
          "parameters, {} for gradients, {} for the optimizer's state, {} for activations; "
          "start fewer ranks on a host, shard the model (strategy.kind=fsdp), or cut it by layers "
          "(strategy.pipeline) or inside of them (strategy.tensor), long samples by positions "
          "(strategy.context), or large images by places (strategy.spatial)",
          ranks_here, bytes_text(static_cast<std::int64_t>(needed)),
          bytes_text(static_cast<std::int64_t>(available_bytes)), bytes_text(peak.parameters),
          bytes_text(peak.gradients), bytes_text(peak.optimizer_state),
          step.memory.activations.empty() ? "unknown bytes" : bytes_text(peak.activations)));
}

bool computes_known(const StepInput& step) {
  return step.measured || std::ranges::any_of(step.plan.model.segments,
                                              [](const auto& s) { return s.flops_per_sample > 0; });
}

Result<comm::StepModel> step_model(const PlanOptions& o, int ranks) {
  STORMO_ASSIGN_OR_RETURN(const plan::Topology t, load_topology(o, ranks));
  comm::Selection selection = comm::Selection::defaults();
  if (!o.selection.empty()) {
    STORMO_ASSIGN_OR_RETURN(selection, comm::read_selection(o.selection));
  }
  return comm::StepModel(o.plan, t, std::move(selection), gflops_of(o));
}

Result<std::string> step_figures(const PlanOptions& o, const StepInput& step) {
  STORMO_ASSIGN_OR_RETURN(Estimate e, estimate(o, step));
  json figures = cost_json(step, e);
  const auto s = e.model.simulate(step, analysis::Timeline::kDrop);
  if (s.ok()) figures["seconds"] = s->seconds;
  return figures.dump();
}

Status step_cost(const PlanOptions& o, const StepInput& step) {
  STORMO_ASSIGN_OR_RETURN(const Estimate e, estimate(o, step));
  if (o.json) {
    print_json(cost_json(step, e));
    return {};
  }
  print_line(heading(step));
  print_traffic(e);
  print_mean(step, e);
  print_mixing(step.plan);
  print_crossings(step);
  print_line("");
  print_memory(step, e);
  return {};
}

Status simulate_step(const PlanOptions& o, const StepInput& step) {
  if (!o.lost.empty()) return simulate_without(o, step);
  STORMO_ASSIGN_OR_RETURN(Estimate e, estimate(o, step));
  const auto timeline = o.json || o.svg ? analysis::Timeline::kKeep : analysis::Timeline::kDrop;
  std::optional<Traced> t;
  if (!o.trace.empty()) {
    STORMO_ASSIGN_OR_RETURN(t, traced(step, e, o.trace));
  }
  STORMO_ASSIGN_OR_RETURN(const analysis::StepSimulation s,
                          t ? e.model.simulate(step, compute_times(step.plan, t->mean), timeline)
                            : e.model.simulate(step, timeline));
  if (o.svg) {
    STORMO_ASSIGN_OR_RETURN(const std::string picture, svg_timeline(step.plan, s));
    fmt::print("{}", picture);
    return {};
  }
  if (o.json) {
    print_simulation_json(step, s, t);
    return {};
  }
  print_line(heading(step));
  fmt::print("a step takes {}; ranks compute nothing in {:.1f} % of it ({})\n",
             time_text(s.seconds), 100 * s.idle_share(),
             t ? fmt::format("computations as in {} steps of {}", t->steps, o.trace)
               : origin_of_times(o, step));
  Rows rows{{"rank", "computes", "done after"}};
  for (std::size_t r = 0; r < std::min(s.finish.size(), kShownRanks); ++r) {
    rows.push_back({fmt::to_string(r), time_text(s.compute[r]), time_text(s.finish[r])});
  }
  print_table(rows, false);
  if (s.finish.size() > kShownRanks) {
    fmt::print("... --json has all {} ranks\n", s.finish.size());
  }
  if (t) print_traced(s, *t);
  return {};
}

}  // namespace stormo::cli
