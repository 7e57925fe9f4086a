#pragma once

#include <cstdint>
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

/// The step of a recipe whose model is `task`, on hosts with that many ranks. `samples` of a
/// micro-batch of one rank; 0: as the recipe says.
Result<StepInput> step_of_recipe(const train::Recipe& recipe, const train::Task& task,
                                 const std::vector<int>& ranks_per_host, std::int64_t samples);

/// The step in virtual time, with the overlap of backward and reductions that is the fastest there:
/// between hosts a training finds it by measurement. `step` has that plan afterwards.
Result<analysis::StepSimulation> simulated_as_trained(const PlanOptions& o,
                                                      const train::TrainerOptions& options,
                                                      StepInput& step);

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

/// Finds out what stages of a pipeline move, where the plan has some. Computes a forward.
void measure_moves(StepInput& step, const train::Task& task, const data::Dataset& dataset);

}  // namespace stormo::cli
