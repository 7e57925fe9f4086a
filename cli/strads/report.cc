#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <string_view>

#include <cli/plan/output.h>
#include <cli/strads/run.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;

double seconds(Duration d) { return std::chrono::duration<double>(d).count(); }

class Reporter {
 public:
  Reporter(const strads::RoundsRun& run, bool json)
      : run_(run), json_(json), before_(run.updates()) {
    if (json) return;
    print_line(fmt::format("{:>9}  {:>11}  {:>10}  {:>16}  {:>9}", "rounds", "updates",
                           run.simulated() != nullptr ? "virtual" : "time", "objective", "gap"));
  }

  /// People get a line whenever there are a quarter more rounds, and at the end.
  void row(const strads::Judged& judged) {
    const std::int64_t rounds = run_.scheduler().rounds_done();
    if (!json_ && judged.end.empty() && 4 * rounds < 5 * shown_) return;
    shown_ = rounds;
    if (json_) {
      print_json(json_of(judged));
    } else {
      const auto& [objective, gap] = judged.now;
      print_line(fmt::format(
          "{:>9}  {:>11}  {:>10}  {:>16.10g}  {:>9}", rounds, run_.updates(),
          format_duration(run_.simulated() != nullptr ? run_.simulated()->time() : judged.real),
          objective, gap ? fmt::format("{:.2g}", *gap) : "-"));
    }
    std::fflush(stdout);
  }

  void end(const strads::Judged& judged, std::uint64_t hash, const StradsFigures& figures) const {
    const double rate =
        static_cast<double>(run_.updates() - before_) / std::max(seconds(judged.real), 1e-9);
    if (json_) {
      Json object = json_of(judged);
      object["end"] = judged.end;
      object["workers"] = run_.workers().count();
      object["updates_per_s"] = rate;
      object["order"] = fmt::format("{:016x}", run_.order_hash());
      object["values"] = fmt::format("{:016x}", hash);
      if (run_.simulated() != nullptr) object["waited"] = run_.simulated()->waited_share();
      for (const auto& [name, value] : figures) object[name] = value;
      print_json(object);
      return;
    }
    const std::int64_t rounds = run_.scheduler().rounds_done();
    print_line(fmt::format("\n{}: {} rounds of {:.3g} blocks, {:.3g} updates per second",
                           judged.end, rounds,
                           static_cast<double>(run_.updates()) /
                               static_cast<double>(std::max<std::int64_t>(rounds, 1)),
                           rate));
    if (run_.simulated() != nullptr) {
      print_line(fmt::format("workers waited for {:.1f} % of virtual time",
                             100 * run_.simulated()->waited_share()));
    }
    for (const auto& [name, value] : figures) print_line(fmt::format("{}: {:.6g}", name, value));
  }

 private:
  Json json_of(const strads::Judged& judged) const {
    Json object = {{"rounds", run_.scheduler().rounds_done()},
                   {"updates", run_.updates()},
                   {"seconds", seconds(judged.real)},
                   {"cpu_s", seconds(judged.cpu)},
                   {"objective", judged.now.objective}};
    if (judged.now.gap) object["gap"] = *judged.now.gap;
    if (run_.simulated() != nullptr) object["virtual_s"] = seconds(run_.simulated()->time());
    return object;
  }

  const strads::RoundsRun& run_;
  bool json_;
  std::int64_t before_;     // updates of an earlier process
  std::int64_t shown_ = 0;  // rounds at the last row
};

}  // namespace

void print_round_plan(const plan::StepPlan& plan, bool json) {
  if (json) return print_json(Json{{"event", "dry_run"}, {"plan", to_text(plan)}});
  fmt::print("{}", to_text(plan));
}

Result<bool> run_and_report(strads::RoundsRun& run, const strads::LoopOptions& loop,
                            strads::LoopEvents events, const StradsEnd& end, bool json,
                            bool speaks) {
  std::optional<Reporter> reporter;
  if (speaks) reporter.emplace(run, json);
  events.judged = [&](const strads::Judged& judged) {
    if (reporter) reporter->row(judged);
  };
  STORMO_ASSIGN_OR_RETURN(const strads::Judged last, strads::run_loop(run, loop, events));
  STORMO_ASSIGN_OR_RETURN(const std::uint64_t hash, end.values_hash());
  STORMO_ASSIGN_OR_RETURN(const StradsFigures figures, end.figures());
  if (reporter) reporter->end(last, hash, figures);
  return last.end != strads::kDiverged;
}

}  // namespace stormo::cli
