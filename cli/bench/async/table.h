#pragma once

#include <map>
#include <optional>
#include <string>
#include <vector>

#include <bench/statistics.h>
#include <bench/worker_record.h>
#include <cli/bench/async/options.h>
#include <cli/plot/losses.h>

namespace stormo::cli {

/// A contender over all rounds.
struct AsyncSummary {
  std::vector<double> rates;   ///< steps of all workers per second, by round
  std::vector<double> step_s;  ///< mean time of a step of a worker that is not slow, by round
  double first_loss = 0;       ///< means over the workers, of the first round
  double last_loss = 0;
  bool trained = true;  ///< in every round losses were finite, and the last below the first
  /// Of the first round: the loss of each step of any worker, since all train; empty: not known.
  std::vector<LossPoint> losses = {};

  double rate() const { return bench::median(rates); }
};
/// `rounds` has the records of each round. kCorrupt when the workers of a round never trained at
/// the same time.
Result<AsyncSummary> summarize_workers(const std::vector<std::vector<bench::WorkerRecord>>& rounds,
                                       const SlowWorker& slow);

struct AsyncResult {
  std::string name;
  AsyncSummary summary;
};

/// One model, all rounds; ratios are those of the first strategy.
struct AsyncRow {
  StepJob job;
  int workers = 1;
  SlowWorker slow;
  AsyncResult ours;
  std::vector<AsyncResult> against;
  std::map<std::string, std::string> absent;  ///< name and reason
};

/// Of the first strategy's rate and another's: above 1, the first one makes more steps.
bench::Spread rate_ratio(const AsyncRow& row, const AsyncResult& other);
/// Of another's time of a step and the first strategy's: above 1, its steps are shorter.
bench::Spread step_ratio(const AsyncRow& row, const AsyncResult& other);

/// What two contenders of the first round came to in the same time.
struct EqualTime {
  Duration at{};  ///< since all workers trained, the time of the one that ended first
  double first_loss = 0, other_loss = 0;
};
/// Of the first strategy and another; nothing where losses are not known. A loss is the mean of as
/// many steps before that moment as all workers make in a pass over all batches.
std::optional<EqualTime> equal_time(const AsyncRow& row, const AsyncResult& other);

/// What was measured, in one line.
std::string async_heading(const AsyncRow& row);
/// "1:3x".
std::string slow_text(const SlowWorker& slow);
/// Lines for people, without the last end.
std::string async_table(const AsyncRow& row);
/// One line of JSON, without its end.
std::string async_json(const AsyncRow& row);
/// An SVG of the first round's losses, over the steps of all workers and over time: a line for each
/// contender that has told them.
std::string async_picture(const AsyncRow& row);

}  // namespace stormo::cli
