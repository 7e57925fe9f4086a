// `stormo plan choose`: which algorithms would run, and by which rule.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include <cli/plan/load.h>
#include <cli/plan/output.h>
#include <stormo/analysis/schedule/cost.h>
#include <stormo/analysis/schedule/simulate.h>
#include <stormo/base/units.h>
#include <stormo/comm/group/posting.h>
#include <stormo/comm/selection/selection.h>

namespace stormo::cli {
namespace {

std::string why(const comm::Selection::Rule& rule, bool by_default) {
  std::string text =
      fmt::format("{} rule for {}", by_default ? "default" : "the file's", to_string(rule.layout));
  if (rule.max_ranks > 0) text += fmt::format(", up to {} ranks", rule.max_ranks);
  if (rule.max_bytes > 0) text += fmt::format(", up to {}", format_bytes(rule.max_bytes));
  return text;
}

}  // namespace

Status choose_plan(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const int ranks, single_ranks(o.ranks));
  STORMO_ASSIGN_OR_RETURN(const plan::Topology topology, load_topology(o, ranks));
  auto bytes = parse_bytes(o.bytes);
  if (!bytes.ok()) return bytes.status().within("--bytes");
  comm::Selection selection;
  if (!o.selection.empty()) {
    STORMO_ASSIGN_OR_RETURN(selection, comm::read_selection(o.selection));
  }
  const bool crowded = o.cores > 0 && ranks > o.cores;
  const comm::HostLayout layout = comm::host_layout_of(topology.host_sizes, crowded);
  Rows rows{{"goal", "algorithm", "pieces", "rounds", "simulated", "why"}};
  for (const plan::GoalKind goal : plan::kGoalKinds) {
    const auto& rule = selection.rule_for(goal, layout, ranks, *bytes);
    STORMO_ASSIGN_OR_RETURN(const plan::Schedule s,
                            comm::build(rule.choice, {goal, o.root}, topology.host_sizes));
    ManualClock clock;
    const auto time = analysis::simulate(s, topology, static_cast<std::int64_t>(*bytes), clock,
                                         analysis::Timeline::kDrop)
                          .duration;
    const bool by_default = selection.rules.empty() || &rule < selection.rules.data() ||
                            &rule >= selection.rules.data() + selection.rules.size();
    rows.push_back({std::string(to_string(goal)), std::string(rule.choice.builder->name),
                    fmt::to_string(rule.choice.pieces), fmt::to_string(s.rounds.size()),
                    format_duration(time), why(rule, by_default)});
    if (o.json) {
      print_json(nlohmann::json{{"goal", to_string(goal)},
                                {"algorithm", rule.choice.builder->name},
                                {"pieces", rule.choice.pieces},
                                {"rounds", s.rounds.size()},
                                {"simulated_s", std::chrono::duration<double>(time).count()},
                                {"why", why(rule, by_default)}});
    }
  }
  if (!o.json) print_table(rows, false);
  const auto inlined = [&](bool reduces) {
    return comm::Posting::max_inline_bytes(ranks, crowded, reduces);
  };
  if (!o.json && topology.hosts() == 1 && *bytes <= inlined(false)) {
    const std::string of_reductions =
        inlined(true) < inlined(false)
            ? fmt::format(", in reductions up to {},", format_bytes(inlined(true)))
            : "";
    print_line(fmt::format(
        "\nUp to {} per rank{} no algorithm runs inside a host where {}: every rank posts "
        "all it has.",
        format_bytes(inlined(false)), of_reductions,
        crowded ? "ranks share cores" : "each rank has a core (see --cores)"));
  }
  return {};
}

}  // namespace stormo::cli
