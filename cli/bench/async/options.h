#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cli/bench/step/options.h>
#include <cli/launch_flags.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// Those of `stormo bench step`, parameter_server with each policy for gradients:
/// "parameter_server:ssp", and
/// "parameter_server:in_place": async, without versions or locks; "downpour": async, with a pull
/// and a push in every fourth step; "parameter_averaging" and "elastic_averaging" with period 8.
std::span<const StepStrategy> async_strategies();

/// The systems that may be asked for beside Stormo.
inline constexpr std::string_view kAsyncOpponents[] = {
    "no_communication", "fast_workers", "torch_rpc", "tensorflow_ps", "tensorflow_mirrored"};

/// The flags of `stormo bench async`, as written.
struct AsyncArguments {
  LaunchFlags launch;
  std::vector<std::string> models = {"mlp"};
  std::vector<std::string> strategies = {"parameter_server:async"};
  int batch = 0;
  int steps = 0;
  int rounds = 0;
  std::vector<std::string> against;
  std::string slow;
  std::string python;
  std::string tensorflow;
  std::string tools;
  bool json = false;
  bool svg = false;
  std::string contender;  ///< what a process of a round is; empty: the one that runs the rounds
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
struct BenchAsyncOptions {
  std::vector<StepJob> jobs;                    ///< one for each model, with the first strategy
  std::vector<const StepStrategy*> strategies;  ///< ratios are those of the first one
  int rounds = 1;
  std::vector<std::string> against;
  SlowWorker slow;
};

/// Lists everything that is wrong, one line each.
Result<BenchAsyncOptions> to_async_options(const AsyncArguments& arguments);

}  // namespace stormo::cli
