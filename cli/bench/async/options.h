#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cli/bench/step/options.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// Those of `stormo bench step`, parameter_server with each policy for gradients:
/// "parameter_server:ssp", and
/// "parameter_server:in_place": async, without versions or locks; "downpour": async, with a pull
/// and a push in every fourth step; "parameter_averaging", "elastic_averaging" and "diloco", with
/// kMeetingPeriod.
std::span<const StepStrategy> async_strategies();
/// One of them.
const StepStrategy& async_strategy(std::string_view name);

/// Steps from one average to the next, of all that average.
inline constexpr int kMeetingPeriod = 8;
/// The opponent of which no worker is slow.
inline constexpr std::string_view kFastWorkers = "fast_workers";

/// The flags of `stormo bench async`, as written.
struct AsyncArguments : TrainingFlags {
  AsyncArguments() { micro_batches = 1; }
  std::vector<std::string> strategies = {"parameter_server:async"};
  std::string slow;
  std::string tensorflow;
  bool svg = false;
};

/// A worker that is made slow on purpose, after the warm-up: forward and backward of its steps take
/// `factor` times as long.
struct SlowWorker {
  double factor = 1;      ///< 1: none is slow
  int worker = 0;         ///< unless in turns
  bool in_turns = false;  ///< another worker in each step
  bool any() const { return factor > 1; }
  /// Whether this worker is always as fast as it can be.
  bool spares(int other) const { return !any() || in_turns || other != worker; }
};
/// Factor of this worker in a step after the warm-up, counted from 0.
double slowness(const SlowWorker& slow, int worker, int workers, int step);

/// What they mean.
struct BenchAsyncOptions : TrainingOptions {
  std::vector<const StepStrategy*> strategies;  ///< ratios are those of the first one
  SlowWorker slow;
};

/// Lists everything that is wrong, one line each.
Result<BenchAsyncOptions> to_async_options(const AsyncArguments& arguments);

}  // namespace stormo::cli
