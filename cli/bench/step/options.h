#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cli/bench/options.h>
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
  /// Gradients are late, or lose some on their way: losses are others after some steps.
  bool deviates = false;
};
/// The one place that knows these names.
std::span<const StepStrategy> step_strategies();

/// Numbers of the classes that images have, and of the tokens of a text.
inline constexpr int kStepClasses = 10;
inline constexpr int kStepVocabulary = 65;
/// Different batches, used in turn: all ranks have the same, so that losses can be compared with
/// those of one process.
inline constexpr int kStepBatches = 8;
inline constexpr int kStepWarmup = 10;
/// Rounds without --rounds.
inline constexpr int kTrainingRounds = 5;

/// The flags of all benchmarks of training, as written; 0: not given.
struct TrainingFlags : BenchFlags {
  std::vector<std::string> models = {"mlp"};
  int batch = 0, micro_batches = 0, steps = 0;
  std::string contender;  ///< what a process of a round is; empty: the one that runs the rounds
};
/// Adds them, and those of BenchFlags. `computer`: who has a batch, "rank" or "worker".
void add_training_flags(CLI::App& command, TrainingFlags& flags, const std::string& computer,
                        const std::string& opponents, const std::string& scripts);

/// The flags of `stormo bench step`, as written.
struct StepArguments : TrainingFlags {
  std::string strategy = "host_shared";
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
struct TrainingOptions {
  std::vector<StepJob> jobs;  ///< one for each model, with the first strategy
  int rounds = kTrainingRounds;
  std::vector<std::string> against;
  int namespaces = 0;  ///< make so many hosts; 0: none
};

/// A job for each model, under a strategy that may be null; appends what is wrong.
std::vector<StepJob> read_jobs(const TrainingFlags& flags, const StepStrategy* strategy,
                               std::vector<std::string>& wrong);
/// Lists everything that is wrong, one line each.
Result<TrainingOptions> to_step_options(const StepArguments& arguments);

}  // namespace stormo::cli
