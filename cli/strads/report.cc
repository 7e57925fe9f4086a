#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <cli/plan/output.h>
#include <cli/strads/program.h>
#include <stormo/base/units.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;

class Reporter {
 public:
  Reporter(const strads::RoundsRun& run, bool json)
      : run_(run), time_(run.simulated()), json_(json), before_(run.updates()) {}

  void begin(const std::string& heading) const {
    if (json_) return;
    const int workers = run_.workers().count();
    print_line(fmt::format("{}; {} worker{}", heading, workers, workers == 1 ? "" : "s"));
    if (rounds() > 0) print_line(fmt::format("goes on after round {}", rounds()));
    print_line(fmt::format("\n{:>9}  {:>11}  {:>10}  {:>16}  {:>9}", "rounds", "updates",
                           time_ != nullptr ? "virtual" : "time", "objective", "gap"));
  }

  /// People get a line whenever there are a quarter more rounds, and at the end.
  void row(const strads::Judged& judged) {
    if (!json_ && judged.end.empty() && 4 * rounds() < 5 * shown_) return;
    shown_ = rounds();
    const auto& [objective, gap] = judged.now;
    if (json_) {
      print_json(json_of(judged));
    } else {
      print_line(fmt::format("{:>9}  {:>11}  {:>10}  {:>16.10g}  {:>9}", rounds(), run_.updates(),
                             format_duration(time_ != nullptr ? time_->time() : judged.real),
                             objective, gap ? fmt::format("{:.2g}", *gap) : "-"));
    }
    std::fflush(stdout);
  }

  void end(const strads::Judged& judged, std::uint64_t hash,
           const StradsProgram::Figures& figures) const {
    const auto updates = static_cast<double>(run_.updates());
    const double rate =
        (updates - static_cast<double>(before_)) / std::max(to_seconds(judged.real), 1e-9);
    if (json_) {
      Json object = json_of(judged);
      object["end"] = judged.end;
      object["workers"] = run_.workers().count();
      object["updates_per_s"] = rate;
      object["order"] = fmt::format("{:016x}", run_.order_hash());
      object["values"] = fmt::format("{:016x}", hash);
      if (time_ != nullptr) object["waited"] = time_->waited_share();
      for (const auto& [name, value] : figures) object[name] = value;
      return print_json(object);
    }
    const auto made = static_cast<double>(std::max<std::int64_t>(rounds(), 1));
    print_line(fmt::format("\n{}: {} rounds of {:.3g} blocks, {:.3g} updates per second",
                           judged.end, rounds(), updates / made, rate));
    if (time_ != nullptr) {
      print_line(
          fmt::format("workers waited for {:.1f} % of virtual time", 100 * time_->waited_share()));
    }
    for (const auto& [name, value] : figures) print_line(fmt::format("{}: {:.6g}", name, value));
  }

 private:
  std::int64_t rounds() const { return run_.scheduler().rounds_done(); }
  Json json_of(const strads::Judged& judged) const {
    Json object = {{"rounds", rounds()},
                   {"updates", run_.updates()},
                   {"seconds", to_seconds(judged.real)},
                   {"cpu_s", to_seconds(judged.cpu)},
                   {"objective", judged.now.objective}};
    if (judged.now.gap) object["gap"] = *judged.now.gap;
    if (time_ != nullptr) object["virtual_s"] = to_seconds(time_->time());
    return object;
  }

  const strads::RoundsRun& run_;
  const protocol::VirtualRounds* time_;  // null: real time
  bool json_;
  std::int64_t before_;     // updates of an earlier process
  std::int64_t shown_ = 0;  // rounds at the last row
};

}  // namespace

Result<bool> run_and_report(StradsProgram& p, bool speaks) {
  strads::RoundsRun& run = p.rounds();
  Reporter reporter(run, p.words.json);
  if (speaks) reporter.begin(p.heading);
  strads::LoopEvents events = p.events;
  events.judged = [&](const strads::Judged& judged) {
    if (speaks) reporter.row(judged);
  };
  STORMO_ASSIGN_OR_RETURN(const strads::Judged last, strads::run_loop(run, p.loop, events));
  STORMO_ASSIGN_OR_RETURN(const std::uint64_t hash, p.values_hash());
  STORMO_ASSIGN_OR_RETURN(const StradsProgram::Figures figures, p.figures());
  if (speaks) reporter.end(last, hash, figures);
  const bool converges = last.end != strads::kDiverged;
  if (speaks && converges) STORMO_RETURN_IF_ERROR(p.write());
  return converges;
}

}  // namespace stormo::cli
