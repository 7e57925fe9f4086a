#pragma once

#include <vector>

#include <cli/plan/options.h>
#include <stormo/train/estimate/measure_together.h>
#include <stormo/train/prepare/recipe_task.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/task.h>

namespace stormo::cli {

/// A recipe with what it names. The model has no values.
struct LoadedRecipe {
  train::Recipe recipe;
  train::RecipeData data;
  train::Task task;
};
/// Reads and checks the recipe that the options name, for `ranks` ranks. kInvalidArgument lists all
/// that is wrong. `any_strategy`: what it says of the strategy does not count.
Result<LoadedRecipe> load_recipe(const PlanOptions& o, int ranks, bool any_strategy = false);

/// Its step on hosts with that many ranks; with --measured a few are trained. What is open in the
/// recipe has its default.
Result<StepInput> step_of(const PlanOptions& o, const LoadedRecipe& loaded,
                          const std::vector<int>& ranks_per_host);

/// The ranks of the fullest host of a job, as far as this host has cores for them, and how many
/// threads each of them would use: what is measured here.
Result<train::RanksOfHost> measured_host(const train::Recipe& recipe,
                                         const std::vector<int>& ranks_per_host);

/// train::measure_together() with half of the available memory. Says on standard error where other
/// processes were in the way.
Result<std::vector<train::StepMeasurement>> measure_here(const train::RanksOfHost& host,
                                                         const train::Task& task,
                                                         const data::Dataset& dataset,
                                                         const std::vector<train::Wanted>& wanted);

}  // namespace stormo::cli
