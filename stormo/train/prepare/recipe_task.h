#pragma once

#include <memory>
#include <string>
#include <vector>

#include <stormo/base/status.h>
#include <stormo/data/dataset.h>
#include <stormo/train/prepare/preprocessing.h>
#include <stormo/train/recipe/recipe.h>
#include <stormo/train/task.h>

namespace stormo::train {

/// The data of a recipe, read and checked completely.
struct RecipeData {
  std::shared_ptr<const data::Dataset> train;
  std::vector<EvalSplit> splits;
  Preprocessing preprocessing;
  /// What was left out on request, one line each.
  std::vector<std::string> warnings;
};

/// The type of the parameters and of the input.
torch::ScalarType scalar_type(const Recipe& recipe);

/// kNotFound, kCorrupt or kInvalidArgument name the file, what is wrong with it and the remedy;
/// also for data that the recipe's model cannot take.
Result<RecipeData> load_data(const Recipe& recipe);

/// The parts that are held out, prepared as training has settled it; the training part is not
/// looked at, RecipeData::train stays empty. Failures as above.
Result<RecipeData> load_held_out(const Recipe& recipe, const Preprocessing& preprocessing);

/// The model of a recipe, with its loss, in the recipe's precision; weights are a function of the
/// seed.
Result<Task> make_task(const Recipe& recipe, const Preprocessing& preprocessing);

/// `prompt` and options.length more tokens, drawn from the seed; an empty prompt stands for the
/// beginning of a line. Only for the task of a "gpt". kInvalidArgument for a prompt that the
/// vocabulary lacks characters of.
Result<std::string> continue_text(const Task& task, const Preprocessing& preprocessing,
                                  const std::string& prompt, const SampleOptions& options,
                                  std::uint64_t seed);

/// What must hold before a run of `recipe` may continue from its checkpoint directory: there is a
/// complete, undamaged checkpoint, and it belongs to this recipe's model.
Status check_resume(const Recipe& recipe);

/// Whether `data` mean the same as those that the checkpoint in the recipe's directory was trained
/// on: the same classes, vocabulary, columns and scales. OK where there is no checkpoint.
Status check_same_data(const Recipe& recipe, const RecipeData& data);

}  // namespace stormo::train
