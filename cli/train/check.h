#pragma once

#include <optional>
#include <string>
#include <vector>

#include <cli/plan/options.h>
#include <cli/train/arguments.h>
#include <stormo/base/status.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe.h>

namespace stormo::cli {

/// The data of a recipe; nothing, and what is wrong, when they cannot be read, or a run that goes
/// on has other ones.
std::optional<train::RecipeData> check_data(const train::ParsedRecipe& parsed, bool resume,
                                            const std::vector<std::string>& accept_changes,
                                            std::vector<std::string>& errors);

/// Notes what is wrong with the folder of the checkpoints, which stays as it was.
void check_checkpoints(const train::ParsedRecipe& parsed, bool resume, bool overwrite,
                       const std::vector<std::string>& accept_changes,
                       std::vector<std::string>& errors);

/// Prints a CheckedRun, whose program and libraries are those of this process.
Status print_checked_run(CheckedRun run);

/// Says what is wrong, to people and with `json` to programs; returns the exit code.
int fail_usage(const std::vector<std::string>& errors, bool json);

/// The recipe with what the command line changes of it.
train::ParsedRecipe recipe_of(const TrainArguments& a);

/// What is wrong for a rank, which reads its own recipe. The launcher has looked at files; under a
/// foreign one rank 0 does.
std::vector<std::string> problems_of_rank(const train::ParsedRecipe& parsed,
                                          const TrainArguments& a, int ranks, bool look_at_files);

/// A run of which everything is right that is looked at before a rank starts. Data, and what is
/// made of them, are read by each rank, which refuses what is wrong. Here they are only of a dry
/// run, of a run whose strategy is to be found, of one with server processes, whose workers are no
/// ranks of one group, and of one that begins with other weights, which ranks take before they know
/// how much memory there is. Of vertical sharding the plan is here, without data.
struct SoundRun {
  int ranks = 1;
  train::ParsedRecipe parsed;       ///< with the strategy that was chosen
  std::vector<std::string> chosen;  ///< the keys of it, where the recipe leaves that open
  std::optional<train::RecipeData> data;
  train::Task task;
  StepInput step;  ///< of all ranks
};

/// Empty, after fail_usage(), when anything is wrong. Leaves all files as they were.
std::optional<SoundRun> check_run(const train::ParsedRecipe& parsed, const TrainArguments& a);

/// For a process that launches ranks: checks, and prints a CheckedRun. Returns the exit code.
int check_train(const TrainArguments& a);

}  // namespace stormo::cli
