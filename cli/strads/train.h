#pragma once

#include <CLI/App.hpp>

#include <cli/strads/options.h>
#include <cli/train/arguments.h>

namespace stormo::cli {

struct StradsTrainArguments : StradsArguments {
  TrainArguments train;                ///< recipe, overrides, checkpoint, resume, overwrite
  std::optional<std::int64_t> rounds;  ///< default: steps of the recipe
  std::int64_t units = 1;              ///< see train::BlockTrainingOptions
};

/// Adds the words of `stormo strads train` to `command`; `run` makes its exit code of them.
void add_strads_train_arguments(CLI::App& command, Invocation& invocation,
                                int (*run)(const StradsTrainArguments& a));

/// `stormo strads train`; returns the exit code.
int run_strads_train(const StradsTrainArguments& a);

/// For a process that launches ranks: checks, and prints a CheckedRun. Returns the exit code.
int check_strads_train_run(const StradsTrainArguments& a);

}  // namespace stormo::cli
