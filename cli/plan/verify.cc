// `stormo plan verify`.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>
#include <variant>

#include <cli/plan/load.h>
#include <cli/plan/output.h>
#include <stormo/analysis/schedule/verify.h>
#include <stormo/analysis/verify/step_verify.h>
#include <stormo/schedule/builders.h>

namespace stormo::cli {
namespace {

using nlohmann::json;
using plan::Schedule;
using schedule::Builder;

void report_verified(const PlanOptions& o, const std::string& what, const Status& st) {
  if (o.json) {
    print_json(json{{"plan", what}, {"ok", st.ok()}, {"error", st.message()}});
  } else if (st.ok()) {
    fmt::print("{}: ok\n", what);
  }
}

/// A builder for every size of the range, every division into equal hosts and into two and
/// three of any size, the outermost roots, and with
/// and without pieces. Returns how many schedules that were.
Result<int> verify_sizes(const Builder& b, const RankRange& range) {
  int verified = 0;
  const auto check = [&](int ranks, int hosts, Rank root, int pieces) -> Status {
    STORMO_ASSIGN_OR_RETURN(const Schedule s, b.build(ranks, hosts, root, pieces));
    ++verified;
    return analysis::verify(s).within(
        fmt::format("{} ranks={} hosts={} root={} pieces={}", b.name, ranks, hosts, root, pieces));
  };
  for (int ranks = range.first; ranks <= range.last; ++ranks) {
    for (int hosts = 1; hosts <= (b.takes.hosts ? ranks : 1); ++hosts) {
      if (ranks % hosts != 0 && (b.takes.even_hosts || hosts > 3)) continue;
      for (const Rank root : {0, ranks - 1}) {
        if (root != 0 && !b.takes.root) continue;
        STORMO_RETURN_IF_ERROR(check(ranks, hosts, root, 1));
        if (b.takes.pieces) STORMO_RETURN_IF_ERROR(check(ranks, hosts, root, 3));
      }
    }
  }
  return verified;
}

Status verify_all(const PlanOptions& o) {
  STORMO_ASSIGN_OR_RETURN(const RankRange range, parse_ranks(o.ranks));
  for (const Builder& b : schedule::builders()) {
    const auto verified = verify_sizes(b, range);
    if (!verified.ok()) {
      report_verified(o, std::string(b.name), verified.status());
      return verified.status();
    }
    report_verified(o, fmt::format("{} ({} schedules)", b.name, *verified), {});
  }
  return {};
}

}  // namespace

Status verify_plan(const PlanOptions& o) {
  if (o.all && !o.plan.empty()) return invalid_argument("give either a plan or --all, not both");
  if (o.all && (o.root != PlanOptions().root || o.pieces != PlanOptions().pieces)) {
    return invalid_argument("--all verifies several roots and pieces: leave out --root, --pieces");
  }
  if (o.all) return verify_all(o);
  STORMO_ASSIGN_OR_RETURN(const Plan p, load_plan(o));
  const auto* s = std::get_if<Schedule>(&p);
  const Status st =
      s != nullptr ? analysis::verify(*s) : analysis::verify(std::get<StepInput>(p).plan);
  report_verified(o, o.plan, st);
  return st.within(o.plan);
}

}  // namespace stormo::cli
