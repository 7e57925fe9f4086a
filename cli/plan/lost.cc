// `stormo plan simulate --lost`: a step of pipelines without some of its ranks.
#include <cli/plan/lost.h>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <cli/plan/output.h>
#include <cli/plan/step.h>
#include <cli/plan/timeline.h>
#include <stormo/analysis/step/assigned.h>
#include <stormo/analysis/verify/assigned_verify.h>
#include <stormo/parallel/pipeline/reroute.h>

namespace stormo::cli {
namespace {

using nlohmann::json;

/// One way to do the step, priced.
struct Way {
  int ranks = 0;
  analysis::StepSimulation simulation;
  analysis::Memory peak;
  std::int64_t between_hosts = 0;
};

Result<Way> price(comm::StepModel& model, const StepInput& step, const std::vector<Rank>& lost,
                  int more_kept = 0, analysis::Timeline timeline = analysis::Timeline::kDrop) {
  STORMO_ASSIGN_OR_RETURN(const plan::AssignedPlan p,
                          parallel::reroute(step.plan, lost, more_kept));
  STORMO_RETURN_IF_ERROR(analysis::verify(p).within(step.plan.strategy));
  Way out{.ranks = step.plan.mesh.size() - static_cast<int>(lost.size()),
          .peak = analysis::memory(p, step.memory).peak};
  STORMO_ASSIGN_OR_RETURN(out.simulation, model.simulate(p, step, timeline));
  STORMO_ASSIGN_OR_RETURN(const std::vector<analysis::Traffic> sent, model.traffic(p, step));
  for (const analysis::Traffic& t : sent) out.between_hosts += t.between_hosts;
  return out;
}

/// All ranks of the replicas that have lost one.
std::vector<Rank> ranks_of_hit_replicas(const plan::StepPlan& p, const std::vector<Rank>& lost) {
  std::vector<Rank> out;
  for (Rank r = 0; r < p.mesh.size(); ++r) {
    const bool hit =
        std::ranges::any_of(lost, [&](Rank l) { return replica_of(p, l) == replica_of(p, r); });
    if (hit) out.push_back(r);
  }
  return out;
}

/// The share of idle time is of the ranks that are left.
std::string idle_text(const Way& way) {
  const double all = static_cast<double>(way.simulation.compute.size());
  const double busy = (1 - way.simulation.idle_share()) * all / way.ranks;
  return fmt::format("{:.1f} %", 100 * (1 - busy));
}

std::vector<std::string> row(const std::string& name, const Way& way, double ideal,
                             bool memory_known) {
  return {name,
          fmt::to_string(way.ranks),
          time_text(way.simulation.seconds),
          fmt::format("{:.1f} %", 100 * ideal / way.simulation.seconds),
          idle_text(way),
          bytes_text(way.between_hosts),
          memory_known ? bytes_text(way.peak.total()) : "unknown"};
}

json to_json(const Way& way) {
  return {{"ranks", way.ranks},
          {"seconds", way.simulation.seconds},
          {"between_hosts", way.between_hosts},
          {"memory_peak", way.peak.total()}};
}

/// What is printed of a loss.
struct Prices {
  Way all;                 ///< nobody is lost
  double ideal = 0;        ///< seconds
  std::vector<Way> peers;  ///< by kKeptMore
  std::optional<Way> dropped;
};

/// Micro-batches of which a rank keeps activations beside as many as the fullest rank does; as many
/// as there are.
constexpr std::array kKeptMore = {0, 1, std::numeric_limits<int>::max()};
constexpr std::array kPeers = {"peers do the work of lost ranks", "  and keep 1 micro-batch more",
                               "  and keep all that they begin"};

Result<Prices> prices(const PlanOptions& o, const StepInput& step, comm::StepModel& model) {
  Prices out;
  STORMO_ASSIGN_OR_RETURN(out.all, price(model, step, {}));
  for (const int more : kKeptMore) {
    STORMO_ASSIGN_OR_RETURN(out.peers.emplace_back(), price(model, step, o.lost, more));
  }
  out.ideal = out.all.simulation.seconds * out.all.ranks / out.peers.front().ranks;
  const std::vector<Rank> hit = ranks_of_hit_replicas(step.plan, o.lost);
  if (static_cast<int>(hit.size()) == step.plan.mesh.size()) return out;
  STORMO_ASSIGN_OR_RETURN(out.dropped, price(model, step, hit));
  return out;
}

void print(const PlanOptions& o, const StepInput& step, const Prices& p) {
  print_line(heading(step));
  fmt::print("without rank(s) {}; {}\n", fmt::join(o.lost, ", "), origin_of_times(o, step));
  const bool known = !step.memory.activations.empty();
  Rows rows{{"", "ranks", "step", "of the ideal", "compute nothing", "sent to other hosts",
             "memory of a rank"},
            row("all ranks", p.all, p.ideal, known),
            {"ideal: the same work, an even share each", fmt::to_string(p.peers.front().ranks),
             time_text(p.ideal), "100.0 %", "", "", ""}};
  for (std::size_t i = 0; i < p.peers.size(); ++i) {
    rows.push_back(row(kPeers[i], p.peers[i], p.ideal, known));
  }
  if (p.dropped) {
    rows.push_back(row("without the pipelines of lost ranks", *p.dropped, p.ideal, known));
  }
  print_table(rows, false);
  if (!p.dropped) print_line("Every pipeline has lost a rank: without these none would be left.");
}

}  // namespace

Status simulate_without(const PlanOptions& o, const StepInput& step) {
  STORMO_ASSIGN_OR_RETURN(comm::StepModel model, step_model(o, step.plan.mesh.size()));
  if (o.svg) {
    STORMO_ASSIGN_OR_RETURN(const Way peers,
                            price(model, step, o.lost, 0, analysis::Timeline::kKeep));
    STORMO_ASSIGN_OR_RETURN(const std::string picture, svg_timeline(step.plan, peers.simulation));
    fmt::print("{}", picture);
    return {};
  }
  STORMO_ASSIGN_OR_RETURN(const Prices p, prices(o, step, model));
  if (o.json) {
    print_json(json{{"event", "end"},
                    {"plan", step.plan.strategy},
                    {"lost", o.lost},
                    {"all_ranks", to_json(p.all)},
                    {"ideal_seconds", p.ideal},
                    {"peers", to_json(p.peers[0])},
                    {"peers_keep_one_more", to_json(p.peers[1])},
                    {"peers_keep_all", to_json(p.peers[2])},
                    {"without_pipelines", p.dropped ? to_json(*p.dropped) : json()}});
    return {};
  }
  print(o, step, p);
  return {};
}

}  // namespace stormo::cli
