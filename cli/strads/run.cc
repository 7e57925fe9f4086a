#include <fmt/format.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <nlohmann/json.hpp>

#include <cli/engine.h>
#include <cli/plan/output.h>
#include <cli/strads/program.h>
#include <cli/train/report.h>
#include <stormo/base/text.h>
#include <stormo/base/units.h>
#include <stormo/strads/sparse_columns.h>

namespace stormo::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string command_of(const StradsProgram& p) { return std::string("strads ") + p.name; }

/// Returns the exit code.
int say(const StradsProgram& p, const Status& why) {
  return say_failed(command_of(p).c_str(), exit_code_of(why), {why.message()}, /*json=*/false);
}

void print_head(const StradsProgram& p, const strads::RoundsRun& run) {
  const int workers = run.workers().count();
  const std::int64_t done = run.scheduler().rounds_done();
  print_line(fmt::format("{}; {} worker{}", p.heading, workers, workers == 1 ? "" : "s"));
  if (done > 0) print_line(fmt::format("goes on after round {}", done));
  print_line(fmt::format("\n{:>9}  {:>11}  {:>10}  {:>16}  {:>9}", "rounds", "updates",
                         run.simulated() != nullptr ? "virtual" : "time", "objective", "gap"));
}

void print_row(const strads::RoundsRun& run, const strads::Judged& judged) {
  const auto& [objective, gap] = judged.now;
  const Duration time = run.simulated() != nullptr ? run.simulated()->time() : judged.real;
  print_line(fmt::format("{:>9}  {:>11}  {:>10}  {:>16.10g}  {:>9}", run.scheduler().rounds_done(),
                         run.updates(), format_duration(time), objective,
                         gap ? fmt::format("{:.2g}", *gap) : "-"));
}

Json json_of(const strads::RoundsRun& run, const strads::Judged& judged) {
  Json object = {{"rounds", run.scheduler().rounds_done()},
                 {"updates", run.updates()},
                 {"seconds", to_seconds(judged.real)},
                 {"cpu_s", to_seconds(judged.cpu)},
                 {"objective", judged.now.objective}};
  if (judged.now.gap) object["gap"] = *judged.now.gap;
  if (run.simulated() != nullptr) object["virtual_s"] = to_seconds(run.simulated()->time());
  return object;
}

/// `rate`: updates per second.
void print_end(const strads::RoundsRun& run, const strads::Judged& judged, double rate,
               const StradsProgram::Figures& figures) {
  const std::int64_t rounds = run.scheduler().rounds_done();
  print_line(fmt::format(
      "\n{}: {} rounds of {:.3g} blocks, {:.3g} updates per second", judged.end, rounds,
      static_cast<double>(run.updates()) / static_cast<double>(std::max<std::int64_t>(rounds, 1)),
      rate));
  if (run.simulated() != nullptr) {
    print_line(fmt::format("workers waited for {:.1f} % of virtual time",
                           100 * run.simulated()->waited_share()));
  }
  for (const auto& [name, value] : figures) print_line(fmt::format("{}: {:.6g}", name, value));
}

void print_end_json(const strads::RoundsRun& run, const strads::Judged& judged, double rate,
                    std::uint64_t hash, const StradsProgram::Figures& figures) {
  Json object = json_of(run, judged);
  object["end"] = judged.end;
  object["workers"] = run.workers().count();
  object["updates_per_s"] = rate;
  object["order"] = fmt::format("{:016x}", run.order_hash());
  object["values"] = fmt::format("{:016x}", hash);
  if (run.simulated() != nullptr) object["waited"] = run.simulated()->waited_share();
  for (const auto& [name, value] : figures) object[name] = value;
  print_json(object);
}

/// After begin(). False: it diverged.
Result<bool> run_and_report(StradsProgram& p, bool speaks) {
  strads::RoundsRun& run = p.rounds();
  const bool json = p.words.json;
  const std::int64_t before = run.updates();  // of an earlier process
  if (speaks && !json) print_head(p, run);
  p.events.judged = [&, shown = std::int64_t{0}](const strads::Judged& judged) mutable {
    // people get a line whenever there are a quarter more rounds, and at the end
    const std::int64_t rounds = run.scheduler().rounds_done();
    if (!speaks || (!json && judged.end.empty() && 4 * rounds < 5 * shown)) return;
    shown = rounds;
    json ? print_json(json_of(run, judged)) : print_row(run, judged);
    std::fflush(stdout);
  };
  STORMO_ASSIGN_OR_RETURN(const strads::Judged last, strads::run_loop(run, p.loop, p.events));
  STORMO_ASSIGN_OR_RETURN(const std::uint64_t hash, p.values_hash());
  STORMO_ASSIGN_OR_RETURN(const StradsProgram::Figures figures, p.figures());
  const bool converges = last.end != strads::kDiverged;
  if (!speaks) return converges;
  const double rate =
      static_cast<double>(run.updates() - before) / std::max(to_seconds(last.real), 1e-9);
  json ? print_end_json(run, last, rate, hash, figures) : print_end(run, last, rate, figures);
  if (converges) STORMO_RETURN_IF_ERROR(p.write());
  return converges;
}

/// Says why there is no run, or no end of it; returns the exit code.
int end_with(const Status& failure, StradsProgram& p, comm::Communicator& group, bool launched) {
  const bool interrupted = failure.code() == Code::kInterrupted;
  const bool saved = interrupted || (failure.code() == Code::kPeerLost && !p.saved().empty());
  const bool refused = failure.code() == Code::kRefused, is_first = group.rank() == 0;
  // a launcher of ours shows what rank 0 says, and ends all ranks: this one is leaving, and must
  // have said why. All know what all refuse, but the logs of other hosts may be elsewhere.
  if (!interrupted && (saved || is_first)) std::signal(SIGTERM, SIG_IGN);
  const bool says = is_first || (!launched && (group.local_rank() == 0 || !refused));
  if (says && !interrupted) say(p, failure);
  if (saved && is_first && (interrupted || !launched)) {
    fmt::print(stderr, "{}\n", how_to_continue(p.saved(), command_of(p).c_str()));
  }
  if (interrupted) return 128 + p.signal;
  if (group.size() > 1 && !refused) group.fail(failure);  // else the others learn no cause
  return saved ? kExitSaved : exit_code_of(failure);
}

/// Of a rank that a launcher has started nothing is checked yet.
Result<bool> run_in(comm::Communicator& group, StradsProgram& p,
                    const transport::Rendezvous& place) {
  const bool is_first = group.rank() == 0;
  const StradsJob job{group.size(), group.local_size(), is_first && place.source != "stormo"};
  Wrong wrong;
  if (place.source != "none") p.check(job, wrong);
  // no rank takes memory before all have looked how much there is
  STORMO_RETURN_IF_ERROR(comm::check_agreement(
      group, wrong.empty() ? p.facts() : std::vector<comm::Fact>(), as_status(wrong)));
  STORMO_RETURN_IF_ERROR(p.begin(group));
  return run_and_report(p, is_first);
}

int run_as_rank(StradsProgram& p, const transport::Rendezvous& place) {
  const Result<comm::Communicator*> group = p.join(place);
  if (!group.ok()) return say(p, group.status());
  const Result<bool> converges = run_in(**group, p, place);
  const int code = !converges.ok()
                       ? end_with(converges.status(), p, **group, place.source == "stormo")
                   : *converges ? kExitOk
                                : kExitFailed;
  const Status left = p.leave();
  return code != kExitOk || left.ok() ? code : say(p, left);
}

/// Prints the plan; returns the exit code.
int dry_run(StradsProgram& p, int workers) {
  const Result<plan::StepPlan> plan = p.plan(workers);
  if (!plan.ok()) return say(p, plan.status());
  const std::string text = to_text(*plan);
  if (p.words.json) {
    print_json(Json{{"event", "dry_run"}, {"plan", text}});
  } else {
    fmt::print("{}", text);
  }
  return kExitOk;
}

}  // namespace

StradsJob job_of(const StradsArguments& a, Wrong& wrong) {
  if (a.virtual_workers) return {.workers = std::max(1, *a.virtual_workers)};
  const std::vector<launch::HostShare> shares = place_of_ranks(a.launch, wrong);
  const launch::HostShare& last = shares.back();
  return {.workers = last.first_rank + last.ranks, .here = ranks_here(shares)};
}

std::vector<comm::Fact> StradsProgram::facts() const {
  std::vector<comm::Fact> facts = {{"program", name}};
  for (const CountingWord& word : words.counting) facts.push_back({word.flag, word.value()});
  return facts;
}

Result<comm::Communicator*> StradsProgram::join(const transport::Rendezvous& place) {
  STORMO_ASSIGN_OR_RETURN(world_, join_world("stormo", place));
  return world_.get();
}

Status StradsProgram::leave() { return world_->finalize(Deadline::never()); }

void StradsProgram::check_common(const StradsJob& job, std::int64_t rows, Wrong& wrong) {
  for (const auto& [flag, value, need] : words.counting) {
    const auto number = need ? number_in<double>(value()) : std::nullopt;
    const std::string says = number ? need(*number) : "";
    if (!says.empty()) wrong.push_back(fmt::format("{}: {} {}", flag, value(), says));
  }
  if (words.cyclic && words.schedule.depth != 0) {
    wrong.emplace_back("--depth: a cycle has one round in flight; give 0");
  }
  if (words.virtual_workers) {
    const bool possible = *words.virtual_workers <= kMostVirtualWorkers;
    simulated = read_virtual_time(words.time, possible ? *words.virtual_workers : 0, wrong);
    simulated->seed = words.schedule.seed;
    if (words.launch.wants_launch()) {
      wrong.emplace_back("--virtual: workers are simulated in one process; no -n or -H");
    }
  }
  if (rows > 0) note(strads::rows_of(0, job.workers, rows).status(), wrong);
  (void)to_launch_options(words.launch, wrong);
}

int run_program(StradsProgram& p, bool may_launch) {
  const StradsArguments& a = p.words;
  const bool simulates = a.virtual_workers.has_value();
  const auto place = simulates ? Result(transport::Rendezvous()) : find_place("stormo", a.launch);
  if (!place.ok()) return say(p, place.status());
  const bool is_rank = place->source != "none";
  if (is_rank && !a.dry_run) return run_as_rank(p, *place);
  if (place->rank != 0) return kExitOk;  // the first rank says what the job would do
  Wrong wrong;
  const StradsJob job = is_rank ? StradsJob{place->size, place->local_size} : job_of(a, wrong);
  p.check(job, wrong);
  const bool launches = !simulates && !a.dry_run && a.launch.wants_launch();
  if (launches && !may_launch) wrong.emplace_back("'stormo' starts ranks; this part of it is one");
  if (!wrong.empty()) return say_failed(command_of(p).c_str(), kExitUsage, wrong, false);
  if (a.dry_run) return dry_run(p, job.workers);
  return launches ? launch_copies(a.launch, "strads") : run_as_rank(p, *place);
}

}  // namespace stormo::cli
