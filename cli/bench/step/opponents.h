#pragma once

#include <span>
#include <string>
#include <string_view>
#include <vector>

#include <cli/bench/contenders.h>
#include <cli/bench/step/options.h>

namespace stormo::cli {

/// A system that a benchmark of training may be asked to compare with: what it needs, and how it is
/// started.
struct TrainingOpponent {
  std::string_view name;
  std::string_view what;  ///< a line of the help page
  /// A process of this program, by the name of its --contender; or empty.
  std::string_view process = {};
  std::string_view strategy = {};  ///< of such a process, if it is not that of the job
  /// Else a script of the tools' folder, and what it imports.
  std::string_view script = {};
  std::vector<PythonImport> imports = {};
  std::vector<std::string> modules = {};  ///< other scripts
  std::vector<std::string> forms = {};  ///< its first argument, the fastest counts; empty: the name
  bool starts_ranks = false;            ///< the script does, and not `stormo run`
  bool one_record = false;              ///< of all ranks together
  int more_ranks = 0;     ///< than Stormo has; those below 0 are the slow one that it lacks
  bool tuned = true;      ///< runs with both settings of malloc
  int chunks = 0;         ///< of the model on each rank of a pipeline of PyTorch; 0: no pipeline
  bool deviates = false;  ///< loses some of the gradients: losses are others after some steps
  std::string_view instead_of = {};  ///< who does the same over Gloo
};

/// Of `stormo bench step`, which also measures libtorch without communication.
std::span<const TrainingOpponent> step_opponents();
/// Of `stormo bench async`.
std::span<const TrainingOpponent> async_opponents();
std::vector<std::string_view> names_of(std::span<const TrainingOpponent> opponents);
/// For --against: a line for each.
std::string help_of(std::span<const TrainingOpponent> opponents);

/// kInvalidArgument says why an opponent cannot compute the steps of a job, and what to change;
/// looked at before it is started, as its own answer is a stack trace. `slow`: a worker is.
Status check_opponent(const TrainingOpponent& opponent, const StepJob& job, int ranks, bool slow);

}  // namespace stormo::cli
