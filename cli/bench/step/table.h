#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <bench/statistics.h>
#include <bench/step_record.h>
#include <cli/bench/step/options.h>

namespace stormo::cli {

/// A contender's records: [round][rank].
using StepRounds = std::vector<std::vector<bench::StepRecord>>;

/// A contender over all rounds.
struct StepSummary {
  double p50_s = 0;  ///< of a step: mean over the ranks, median over the rounds; p90_s likewise
  double p90_s = 0;
  std::vector<double> round_p50_s;  ///< mean over the ranks
  double pss_per_rank = 0;          ///< bytes, of the largest rank; medians over the rounds
  double pss_per_host = 0;          ///< of the largest host
  double peak_rss_per_rank = 0;
  double first_loss = 0;  ///< mean over the ranks, of the first round
  double compared_loss = 0;
  double last_loss = 0;
  bool trained = false;  ///< in every round all losses were finite, and the last below the first
};
StepSummary summarize(const StepRounds& rounds);

/// A contender with the setting of malloc that suits it best, which is the one that counts.
struct StepResult {
  std::string name;
  std::string malloc;                        ///< the better one
  std::map<std::string, StepSummary> tried;  ///< by setting
  const StepSummary& best() const { return tried.at(malloc); }
};
/// `tried` must not be empty.
StepResult choose_malloc(std::string name, std::map<std::string, StepSummary> tried);

/// Who does another's work over Stormo's backend for PyTorch.
struct Speedup {
  std::string name;
  std::string over;
  bench::Spread ratio;  ///< of the other's time to its own
  /// Of the time above that of `pytorch`, the loop without communication: its own to the other's.
  std::optional<bench::Spread> exposed;
};
/// Of those of `against` that take another's place, where that one is there as well.
std::vector<Speedup> speedups(const std::vector<StepResult>& against);

/// One model, all rounds.
struct StepRow {
  StepJob job;
  int ranks = 1;
  int hosts = 1;
  StepSummary ours;
  StepResult without_communication;
  std::optional<StepSummary> predicted;  ///< times only
  std::vector<StepResult> against;
  std::map<std::string, std::string> left_out;  ///< name and reason
};

/// Whether the losses of steps that train are those of one process, to a thousandth; of what
/// `deviates` the first one.
bool agrees(const StepSummary& one, const StepSummary& reference, bool deviates);
bool verified(const StepRow& row);

/// Lines for people, without the last end.
std::string step_table(const StepRow& row);
/// One line of JSON, without its end.
std::string step_json(const StepRow& row);

}  // namespace stormo::cli
