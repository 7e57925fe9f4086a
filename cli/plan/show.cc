// `stormo plan list` and `stormo plan show`.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <variant>

#include <cli/plan/load.h>
#include <cli/plan/output.h>
#include <cli/plan/picture.h>
#include <cli/plan/rounds.h>
#include <stormo/parallel/strategy/strategy.h>
#include <stormo/plan/project.h>
#include <stormo/schedule/builders.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using plan::Schedule;
using schedule::Builder;

Status print_picture(const Result<std::string>& picture) {
  if (!picture.ok()) return picture.status();
  fmt::print("{}", *picture);
  return {};
}

void print_rounds(const Schedule& s) {
  std::size_t transfers = 0;
  for (const plan::Round& round : s.rounds) transfers += round.size();
  const std::string root = plan::has_root(s.goal.kind) ? fmt::format(", root {}", s.goal.root) : "";
  fmt::print("{}: {} among {} ranks{}; {} chunks, {} rounds, {} transfers\n", s.name,
             to_string(s.goal.kind), s.ranks, root, s.chunks, s.rounds.size(), transfers);
  if (s.rounds.empty()) return;
  fmt::print("what each rank sends; + the receiver reduces, = it copies\n\n");
  const RoundsTable table = rounds_table(s);
  print_table(table.rows, false);
  if (!table.note.empty()) fmt::print("\n{}--text has all.\n", table.note);
}

/// With --rank what this rank executes, else the whole plan.
Result<plan::StepPlan> part_of_rank(const PlanOptions& o, const plan::StepPlan& p) {
  if (!o.rank) return p;
  if (*o.rank < p.mesh.size()) return project(p, *o.rank);
  return invalid_argument(
      fmt::format("--rank {}: the plan is for {} rank(s), counted from 0", *o.rank, p.mesh.size()));
}

}  // namespace

Status list_plans(const PlanOptions& o) {
  Rows rows{{"algorithm", "goal", "needs", "what it does"}};
  for (const Builder& b : schedule::builders()) {
    const std::string needs = std::string("--ranks") + (b.takes.hosts ? " --hosts" : "") +
                              (b.takes.root ? " --root" : "") + (b.takes.pieces ? " --pieces" : "");
    rows.push_back(
        {std::string(b.name), std::string(to_string(b.goal)), needs, std::string(b.description)});
    if (o.json) {
      print_json(json{{"name", b.name},
                      {"goal", to_string(b.goal)},
                      {"takes_hosts", b.takes.hosts},
                      {"takes_root", b.takes.root},
                      {"takes_pieces", b.takes.pieces},
                      {"description", b.description}});
    }
  }
  if (o.json) return {};
  print_table(rows, false);
  std::vector<std::string> strategies = parallel::strategy_names();
  std::erase(strategies, "auto");  // has no plan of its own
  fmt::print("\nStep plans, for a sample model (--ranks --hosts): {}\n",
             fmt::join(strategies, ", "));
  return {};
}

Status show_plan(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const Plan p, load_plan(o));
  const auto* s = std::get_if<Schedule>(&p);
  if (o.dot || o.svg) {
    if (s == nullptr) {
      return invalid_argument("'" + o.plan +
                              "' is a step plan: 'stormo plan simulate --svg' draws its timeline");
    }
    return print_picture(o.dot ? dot_picture(*s) : svg_picture(*s));
  }
  if (s != nullptr && o.rank) {
    return invalid_argument("--rank is for step plans; of an algorithm all ranks are shown");
  }
  if (s != nullptr && !o.text && !o.json) {
    print_rounds(*s);
    return {};
  }
  plan::StepPlan step;
  if (s == nullptr) {
    STORMO_ASSIGN_OR_RETURN(step, part_of_rank(o, std::get<StepInput>(p).plan));
  }
  const std::string text = s != nullptr ? to_text(*s) : to_text(step);
  const std::uint64_t number = s != nullptr ? hash(*s) : hash(step);
  if (o.json) {
    print_json(json{{"kind", s != nullptr ? "schedule" : "step_plan"},
                    {"hash", fmt::format("{:016x}", number)},
                    {"text", text}});
  } else {
    fmt::print("{}# hash {:016x}\n", text, number);
  }
  return {};
}

}  // namespace stormo::cli
