#pragma once

#include <cstdio>
#include <exception>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <vector>

#include <cli/bench/async/options.h>
#include <cli/bench/report.h>
#include <cli/bench/rounds.h>
#include <cli/bench/step/opponents.h>
#include <cli/commands.h>
#include <cli/failure.h>
#include <stormo/launch/process/signals.h>

namespace stormo::cli {

/// A contender of a benchmark of training that is this program.
struct OwnContender {
  std::string name;
  std::string process;  ///< its --contender
  StepJob job;
  std::string malloc = kDefaultMalloc;
};

/// What is measured of one model, and by whom.
struct TrainingComparison {
  std::string bench;  ///< "step" or "async"
  StepJob job;
  StepJob inputs;                 ///< whose weights and batches scripts get
  std::vector<OwnContender> own;  ///< which must not fail
  std::span<const TrainingOpponent> opponents = {};
  std::vector<std::string> against = {};  ///< of these
  std::string python = {}, tensorflow = {};
  SlowWorker slow = {};
  std::string slow_flag = {};  ///< as --slow said it
};

/// What came of it.
template <class Record>
struct TrainingOutcome {
  const TrainingComparison& comparison;
  const BenchSite& site;
  std::vector<Contender> contenders = {};
  RoundResults<Record> results = {};
  std::map<std::string, std::string> left_out = {};  ///< name and reason
};

/// The contenders of a comparison, its own ones first; who cannot take part is added to `left_out`.
Result<std::vector<Contender>> gather_training(const TrainingComparison& comparison,
                                               const BenchSite& site,
                                               std::map<std::string, std::string>& left_out);
/// Whether every strategy fits the model and the number of ranks.
Status check_own(const TrainingComparison& comparison, int ranks);

/// All models, one after the other. False when a result was wrong.
template <class Record>
Result<bool> compare_models(
    const TrainingFlags& flags, const TrainingOptions& options,
    Result<std::vector<Record>> (*parse)(std::string_view),
    const std::function<TrainingComparison(const StepJob& job)>& comparison_of,
    const std::function<Result<Report>(const TrainingOutcome<Record>&)>& report) {
  // between two children a signal waits for the next one: hosts are always taken away
  STORMO_ASSIGN_OR_RETURN(const auto signals, launch::SignalReader::create());
  STORMO_ASSIGN_OR_RETURN(const auto place, BenchPlace::create(flags, options.namespaces));
  std::vector<TrainingComparison> comparisons;
  for (const StepJob& job : options.jobs) {
    comparisons.push_back(comparison_of(job));
    STORMO_RETURN_IF_ERROR(check_own(comparisons.back(), place->site.ranks));
  }
  const auto compare = [&](const TrainingComparison& c) -> Result<Report> {
    TrainingOutcome<Record> out{.comparison = c, .site = place->site};
    STORMO_ASSIGN_OR_RETURN(out.contenders, gather_training(c, out.site, out.left_out));
    STORMO_ASSIGN_OR_RETURN(out.results,
                            run_rounds(out.contenders, options.rounds, parse, out.left_out));
    for (const auto& [name, reason] : out.left_out)
      std::fprintf(stderr, "stormo bench %s: left out: %s\n", c.bench.c_str(), reason.c_str());
    return report(out);
  };
  return print_each<TrainingComparison>(/*speaks=*/true, "", comparisons, compare);
}

/// The exit code of a benchmark of training: of the process that runs the rounds (`compare`: false
/// when a result was wrong), or of a process of a round.
template <class Compare, class RunRank>
int run_training_bench(const char* name, const std::string& contender, const Compare& compare,
                       const RunRank& run_rank) {
  try {
    if (contender.empty()) return exit_code_of(name, compare());
    return exit_code_of(name, run_rank());
  } catch (const std::exception& e) {
    return fail(name, Status(Code::kException, e.what()));
  }
}

}  // namespace stormo::cli
