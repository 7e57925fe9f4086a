#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cli/launch_flags.h>
#include <stormo/base/status.h>

namespace stormo::cli {

/// A model whose training step is measured.
struct StepModel {
  std::string_view name;
  std::vector<std::string> recipe;   ///< keys of a recipe with their values: "model.kind=mlp"
  std::vector<std::int64_t> sample;  ///< shape of an input
  bool tokens;                       ///< of a text, each to be followed by the next; else an image
  int batch;                         ///< samples per rank
  int steps;                         ///< that are timed in every round
};
std::span<const StepModel> step_models();

/// A way to train by a short name, and the keys of a recipe that it stands for.
struct StepStrategy {
  std::string_view name;
  std::vector<std::string> recipe;
  /// All ranks together compute one batch: the key of recipes whose value is their number.
  std::string_view cut = {};
  int micro_batches = 1;  ///< unless said otherwise
  bool delayed = false;   ///< gradients are late, so losses are others after some steps
};
/// The one place that knows these names.
std::span<const StepStrategy> step_strategies();

/// The systems that may be asked for beside Stormo and libtorch without communication.
inline constexpr std::string_view kStepOpponents[] = {
    "pytorch_ddp",         "pytorch_fsdp",   "pytorch",      "arena",
    "predicted",           "pytorch_gpipe",  "pytorch_1f1b", "pytorch_interleaved",
    "pytorch_zero_bubble", "pytorch_tensor", "one_process"};

/// Numbers of the classes that images have, and of the tokens of a text.
inline constexpr int kStepClasses = 10;
inline constexpr int kStepVocabulary = 65;
/// Different batches, used in turn: all ranks have the same, so that losses can be compared with
/// those of one process.
inline constexpr int kStepBatches = 8;
inline constexpr int kStepWarmup = 10;

/// The flags of `stormo bench step`, as written.
struct StepArguments {
  LaunchFlags launch;
  std::vector<std::string> models = {"mlp"};
  std::string strategy = "host_shared";
  int batch = 0;
  int micro_batches = 0;
  int steps = 0;
  int rounds = 0;
  std::vector<std::string> against;
  std::string rate;
  int ranks_per_host = 1;
  std::string python;
  std::string tools;
  bool json = false;
  std::string contender;  ///< what a process of a round is; empty: the one that runs the rounds
};

/// One model under one strategy, as all contenders of a round run it.
struct StepJob {
  const StepModel* model = nullptr;
  const StepStrategy* strategy = nullptr;
  int batch = 0;  ///< per rank, or of all ranks together
  int micro_batches = 1;
  int steps = 0;           ///< timed, after kStepWarmup others
  bool plain_sgd = false;  ///< instead of AdamW
};

/// Into how many parts the samples of a step are divided on `ranks` ranks.
inline int parts_of(const StepJob& job, int ranks) { return job.strategy->cut.empty() ? ranks : 1; }

/// What they mean.
struct BenchStepOptions {
  std::vector<StepJob> jobs;
  int rounds = 1;
  std::vector<std::string> against;
  int namespaces = 0;  ///< make so many hosts; 0: none
  std::string rate;
};

/// The flags that benchmarks of training share, as written; 0: not given.
struct JobFlags {
  const std::vector<std::string>& models;
  int batch, micro_batches, steps, rounds;
  std::string_view computer;  ///< who has a batch: "rank" or "worker"
};
/// A job for each model, under a strategy that may be null; appends what is wrong.
std::vector<StepJob> read_jobs(const JobFlags& flags, const StepStrategy* strategy,
                               std::vector<std::string>& wrong);
/// Rounds without --rounds.
inline constexpr int kTrainingRounds = 5;

/// Lists everything that is wrong, one line each.
Result<BenchStepOptions> to_step_options(const StepArguments& arguments);

}  // namespace stormo::cli
