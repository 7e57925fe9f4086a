#pragma once

#include <string>

#include <cli/bench/step/options.h>
#include <stormo/base/status.h>
#include <stormo/train/recipe/recipe.h>

namespace stormo::cli {

/// The recipe of a measured run of `ranks` ranks, as `stormo train` would read it: one thread per
/// rank, no checkpoint. kInvalidArgument lists what this program does not know.
Result<train::Recipe> step_recipe(const StepJob& job, int ranks);

/// For systems in another language: the weights before the first step, then all batches, each its
/// input and its target, as raw numbers in the order in which the model lists its parameters.
Status write_step_inputs(const StepJob& job, const std::string& path);
/// The model, its sizes and those of the run, as JSON.
Result<std::string> describe_step(const StepJob& job);

}  // namespace stormo::cli
